extern "C" __global__ void __launch_bounds__(256) r_320_25(float* p0, float* p1) {
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
    const float v14 = p1[v13];
    const float v15 = v12 + v14;
    const int v16 = v11 + 2560;
    const int v17 = i9 * 16;
    const int v18 = v17 + v2;
    const bool v19 = v18 < 17;
    const float v20 = v19 ? p1[v16] : 0.0f;
    const int v21 = v11 + 3840;
    const bool v22 = i9 < 1;
    const float v23 = v22 ? p1[v21] : 0.0f;
    const float v24 = v20 + v23;
    const float v25 = v15 + v24;
    const float v26 = acc6 + v25;
    acc6 = v26;
  }
  float all27 = acc6;
  __shared__ float lanes28[256];
  lanes28[threadIdx.x] = all27;
  __syncthreads();
  const unsigned int first29 = threadIdx.x % 64u;
  all27 = (float)lanes28[first29];
  for (unsigned int i30 = 1; i30 < 4u; ++i30) {
    const float v31 = (float)lanes28[first29 + i30 * 64u];
    all27 = all27 + v31;
  }
  if (threadIdx.x < 64u) p0[v5] = all27;
}
