extern "C" __global__ void __launch_bounds__(256) e_1000_1000(float* p0, float* p1) {
  const int t0 = (int)threadIdx.x;
  const int block1 = (int)(blockIdx.x);
  const int v2 = block1 * 1024;
  const int v3 = block1 * 256;
  const int v4 = t0 * 4;
  const int v5 = v2 + v4;
  const int v6 = v3 + t0;
  const bool v7 = v6 < 250000;
  uint4 w8 = make_uint4(0u, 0u, 0u, 0u);
  if (v7) w8 = *(const uint4*)(p1 + v5);
  const float v9 = v7 ? float_of_bits(w8.x) : 0.0f;
  const float v10 = v7 ? float_of_bits(w8.y) : 0.0f;
  const float v11 = v7 ? float_of_bits(w8.z) : 0.0f;
  const float v12 = v7 ? float_of_bits(w8.w) : 0.0f;
  const float v13 = fused_float(v9, 2.0f, 1.0f);
  const float v14 = fused_float(v10, 2.0f, 1.0f);
  const float v15 = fused_float(v11, 2.0f, 1.0f);
  const float v16 = fused_float(v12, 2.0f, 1.0f);
  if (v7) *(uint4*)(p0 + v5) = make_uint4(bits_of_float(v13), bits_of_float(v14), bits_of_float(v15), bits_of_float(v16));
}
