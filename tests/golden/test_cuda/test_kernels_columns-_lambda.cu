extern "C" __global__ void __launch_bounds__(256) r_320_20(float* p0, float* p1) {
  const int t0 = (int)threadIdx.x;
  const int v1 = (int)((unsigned int)t0 % (unsigned int)64);
  const int v2 = (int)((unsigned int)t0 / (unsigned int)64);
  const int block3 = (int)(blockIdx.x);
  const int v4 = block3 * 64;
  const int v5 = v4 + v1;
  float acc6 = 0.0f;
  const int v7 = v2 * 320;
  const int v8 = v5 + v7;
  for (int i9 = 0; i9 < 2; ++i9) {
    const int v10 = i9 * 5120;
    const int v11 = v8 + v10;
    const float v12 = p1[v11];
    const int v13 = v11 + 1280;
    const bool v14 = i9 < 1;
    const float v15 = v14 ? p1[v13] : 0.0f;
    const float v16 = v12 + v15;
    const int v17 = v11 + 2560;
    const float v18 = v14 ? p1[v17] : 0.0f;
    const int v19 = v11 + 3840;
    const float v20 = v14 ? p1[v19] : 0.0f;
    const float v21 = v18 + v20;
    const float v22 = v16 + v21;
    const float v23 = acc6 + v22;
    acc6 = v23;
  }
  float all24 = acc6;
  __shared__ float lanes25[256];
  lanes25[threadIdx.x] = all24;
  __syncthreads();
  const unsigned int first26 = threadIdx.x % 64u;
  all24 = (float)lanes25[first26];
  for (unsigned int i27 = 1; i27 < 4u; ++i27) {
    const float v28 = (float)lanes25[first26 + i27 * 64u];
    all24 = all24 + v28;
  }
  if (threadIdx.x < 64u) p0[v5] = all24;
}
