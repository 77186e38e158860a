static void kernel_body(unsigned char *const *t, const int64_t *v, unsigned char *w, int64_t begin, int64_t end) {
  unsigned char *const p0 = t[0];
  unsigned char *const p1 = t[1];
  (void)t, (void)v, (void)w, (void)begin, (void)end;
  for (int i0 = 0; i0 < 64; ++i0) {
    const int v1 = i0 * 64;
    unsigned short v2[16];
    memcpy(v2, p1 + 2 * (long long)(v1), 32);
    float v3[16];
    for (int l = 0; l < 16; ++l) v3[l] = float_of_bits((unsigned int)v2[l] << 16);
    float v4[16];
    for (int l = 0; l < 16; ++l) v4[l] = max_float(0.0f, v3[l]);
    unsigned short v5[16];
    for (int l = 0; l < 16; ++l) v5[l] = bfloat16_of_float(v4[l]);
    memcpy(p0 + 2 * (long long)(v1), v5, 32);
    const int v6 = v1 + 16;
    unsigned short v7[16];
    memcpy(v7, p1 + 2 * (long long)(v6), 32);
    float v8[16];
    for (int l = 0; l < 16; ++l) v8[l] = float_of_bits((unsigned int)v7[l] << 16);
    float v9[16];
    for (int l = 0; l < 16; ++l) v9[l] = max_float(0.0f, v8[l]);
    unsigned short v10[16];
    for (int l = 0; l < 16; ++l) v10[l] = bfloat16_of_float(v9[l]);
    memcpy(p0 + 2 * (long long)(v6), v10, 32);
    const int v11 = v1 + 32;
    unsigned short v12[16];
    memcpy(v12, p1 + 2 * (long long)(v11), 32);
    float v13[16];
    for (int l = 0; l < 16; ++l) v13[l] = float_of_bits((unsigned int)v12[l] << 16);
    float v14[16];
    for (int l = 0; l < 16; ++l) v14[l] = max_float(0.0f, v13[l]);
    unsigned short v15[16];
    for (int l = 0; l < 16; ++l) v15[l] = bfloat16_of_float(v14[l]);
    memcpy(p0 + 2 * (long long)(v11), v15, 32);
    const int v16 = v1 + 48;
    unsigned short v17[16];
    memcpy(v17, p1 + 2 * (long long)(v16), 32);
    float v18[16];
    for (int l = 0; l < 16; ++l) v18[l] = float_of_bits((unsigned int)v17[l] << 16);
    float v19[16];
    for (int l = 0; l < 16; ++l) v19[l] = max_float(0.0f, v18[l]);
    unsigned short v20[16];
    for (int l = 0; l < 16; ++l) v20[l] = bfloat16_of_float(v19[l]);
    memcpy(p0 + 2 * (long long)(v16), v20, 32);
  }
}

static void kernel(unsigned char *const *t, const int64_t *v, unsigned char *w) {
  kernel_body(t, v, w, 0, 1);
}
