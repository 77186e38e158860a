static void kernel_body(unsigned char *const *t, const int64_t *v, unsigned char *w, int64_t begin, int64_t end) {
  unsigned char *const p0 = t[0];
  unsigned char *const p1 = t[1];
  (void)t, (void)v, (void)w, (void)begin, (void)end;
  const int stop1 = (int)(end);
  for (int i0 = (int)(begin); i0 < stop1; ++i0) {
    const int v2 = i0 * 32;
    float v3[8];
    memcpy(v3, p1 + 4 * (long long)(v2), 32);
    float v4[8];
    for (int l = 0; l < 8; ++l) v4[l] = fused_float(v3[l], 2.0f, 1.0f);
    memcpy(p0 + 4 * (long long)(v2), v4, 32);
    const int v5 = v2 + 8;
    float v6[8];
    memcpy(v6, p1 + 4 * (long long)(v5), 32);
    float v7[8];
    for (int l = 0; l < 8; ++l) v7[l] = fused_float(v6[l], 2.0f, 1.0f);
    memcpy(p0 + 4 * (long long)(v5), v7, 32);
    const int v8 = v2 + 16;
    float v9[8];
    memcpy(v9, p1 + 4 * (long long)(v8), 32);
    float v10[8];
    for (int l = 0; l < 8; ++l) v10[l] = fused_float(v9[l], 2.0f, 1.0f);
    memcpy(p0 + 4 * (long long)(v8), v10, 32);
    const int v11 = v2 + 24;
    float v12[8];
    memcpy(v12, p1 + 4 * (long long)(v11), 32);
    float v13[8];
    for (int l = 0; l < 8; ++l) v13[l] = fused_float(v12[l], 2.0f, 1.0f);
    memcpy(p0 + 4 * (long long)(v11), v13, 32);
  }
}

static void kernel(unsigned char *const *t, const int64_t *v, unsigned char *w) {
  kernel_body(t, v, w, 0, 31250);
}
