static void launch_0(unsigned char *const *t, const int64_t *v, unsigned char *w, int64_t begin, int64_t end) {
  unsigned char *const p0 = t[0];
  unsigned char *const p1 = t[1];
  (void)t, (void)v, (void)w, (void)begin, (void)end;
  float v0[8];
  memcpy(v0, p1 + 4 * (long long)(0), 32);
  float v1[8];
  for (int l = 0; l < 8; ++l) v1[l] = v0[l] * 2.0f;
  memcpy(p0 + 4 * (long long)(0), v1, 32);
}

static void launch(unsigned char *const *t, const int64_t *v, unsigned char *w) {
  {
    unsigned char *const t0[] = {t[1], t[0]};
    const int64_t v0[] = {0};
    launch_0(t0, v0, w, 0, 1);
  }
  {
    unsigned char *const t0[] = {t[2], t[1]};
    const int64_t v0[] = {0};
    launch_0(t0, v0, w, 0, 1);
  }
  {
    unsigned char *const t0[] = {t[3], t[2]};
    const int64_t v0[] = {0};
    launch_0(t0, v0, w, 0, 1);
  }
  (void)t, (void)v, (void)w;
}
