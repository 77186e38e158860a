static void kernel_body(unsigned char *const *t, const int64_t *v, unsigned char *w, int64_t begin, int64_t end) {
  unsigned char *const p0 = t[0];
  unsigned char *const p1 = t[1];
  (void)t, (void)v, (void)w, (void)begin, (void)end;
  for (int i0 = 0; i0 < 2; ++i0) {
    const int v1 = i0 * 24;
    const int v2 = v1 < 11 ? v1 : 11;
    int v3[8];
    memcpy(v3, p1 + 4 * (long long)(v2), 32);
    int v4[8];
    for (int l = 0; l < 8; ++l) v4[l] = (int)floor_div((int)v3[l], (int)3);
    int v5[8];
    for (int l = 0; l < 8; ++l) v5[l] = (int)floor_mod((int)v4[l], (int)5);
    memcpy(p0 + 4 * (long long)(v2), v5, 32);
    const int v6 = v2 + 8;
    int v7[8];
    memcpy(v7, p1 + 4 * (long long)(v6), 32);
    int v8[8];
    for (int l = 0; l < 8; ++l) v8[l] = (int)floor_div((int)v7[l], (int)3);
    int v9[8];
    for (int l = 0; l < 8; ++l) v9[l] = (int)floor_mod((int)v8[l], (int)5);
    memcpy(p0 + 4 * (long long)(v6), v9, 32);
    const int v10 = v2 + 16;
    int v11[8];
    memcpy(v11, p1 + 4 * (long long)(v10), 32);
    int v12[8];
    for (int l = 0; l < 8; ++l) v12[l] = (int)floor_div((int)v11[l], (int)3);
    int v13[8];
    for (int l = 0; l < 8; ++l) v13[l] = (int)floor_mod((int)v12[l], (int)5);
    memcpy(p0 + 4 * (long long)(v10), v13, 32);
  }
}

static void kernel(unsigned char *const *t, const int64_t *v, unsigned char *w) {
  kernel_body(t, v, w, 0, 1);
}
