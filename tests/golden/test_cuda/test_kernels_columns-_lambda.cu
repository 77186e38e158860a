extern "C" __global__ void __launch_bounds__(256) r_320_1000(float* p0, float* p1) {
  const int t0 = (int)threadIdx.x;
  const int v1 = (int)((unsigned int)t0 % (unsigned int)32);
  const int v2 = (int)((unsigned int)t0 / (unsigned int)32);
  const int block3 = (int)(blockIdx.x);
  const int v4 = block3 * 32;
  const int v5 = v4 + v1;
  float acc6 = 0.0f;
  const int v7 = v2 * 320;
  const int v8 = v5 + v7;
  for (int i9 = 0; i9 < 125; ++i9) {
    const int v10 = i9 * 2560;
    const int v11 = v8 + v10;
    const float v12 = p1[v11];
    const float v13 = acc6 + v12;
    acc6 = v13;
  }
  float all14 = acc6;
  __shared__ float lanes15[256];
  lanes15[threadIdx.x] = all14;
  __syncthreads();
  const unsigned int first16 = threadIdx.x % 32u;
  all14 = (float)lanes15[first16];
  for (unsigned int i17 = 1; i17 < 8u; ++i17) {
    const float v18 = (float)lanes15[first16 + i17 * 32u];
    all14 = all14 + v18;
  }
  if (threadIdx.x < 32u) p0[v5] = all14;
}
