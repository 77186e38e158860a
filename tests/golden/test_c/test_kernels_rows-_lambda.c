static void kernel_body(unsigned char *const *t, const int64_t *v, unsigned char *w, int64_t begin, int64_t end) {
  unsigned char *const p0 = t[0];
  unsigned char *const p1 = t[1];
  (void)t, (void)v, (void)w, (void)begin, (void)end;
  for (int i0 = 0; i0 < 8; ++i0) {
    float acc1[8];
    for (int l = 0; l < 8; ++l) acc1[l] = 0.0f;
    float acc2[8];
    for (int l = 0; l < 8; ++l) acc2[l] = 0.0f;
    const int v3 = i0 * 300;
    for (int i4 = 0; i4 < 19; ++i4) {
      const int v5 = i4 * 16;
      const int v6 = v3 + v5;
      float v7[8];
      memcpy(v7, p1 + 4 * (long long)(v6), 32);
      float v8[8];
      for (int l = 0; l < 8; ++l) v8[l] = acc1[l] + v7[l];
      for (int l = 0; l < 8; ++l) acc1[l] = v8[l];
      const int v9 = v6 + 8;
      const int v10 = (int)v5;
      const int v11[8] = {0, 1, 2, 3, 4, 5, 6, 7};
      int v12[8];
      for (int l = 0; l < 8; ++l) v12[l] = (int)((unsigned int)v11[l] + (unsigned int)v10);
      bool v13[8];
      for (int l = 0; l < 8; ++l) v13[l] = v12[l] < 292;
      float v14[8];
      for (int l = 0; l < 8; ++l) v14[l] = v13[l] ? load_float(p1, v9 + l) : 0.0f;
      float v15[8];
      for (int l = 0; l < 8; ++l) v15[l] = acc2[l] + v14[l];
      for (int l = 0; l < 8; ++l) acc2[l] = v15[l];
    }
    float v16[8];
    for (int l = 0; l < 8; ++l) v16[l] = acc1[l] + acc2[l];
    const float v17 = v16[0] + v16[4];
    const float v18 = v16[1] + v16[5];
    const float v19 = v16[2] + v16[6];
    const float v20 = v16[3] + v16[7];
    const float v21 = v17 + v19;
    const float v22 = v18 + v20;
    const float v23 = v21 + v22;
    store_float(p0, i0, v23);
  }
}

static void kernel(unsigned char *const *t, const int64_t *v, unsigned char *w) {
  kernel_body(t, v, w, 0, 1);
}
