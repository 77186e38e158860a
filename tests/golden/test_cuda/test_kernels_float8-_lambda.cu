inline_ float float_of_float8_e4m3fn(unsigned char x) {
  const u32 magnitude = x & 127u, sign = (u32)(x & 128u) << 24;
  const u32 moved = magnitude << 20;
  u32 word = moved + 1006632960u;
  if (magnitude < 8u) word = bits_of_float((float)(int)magnitude * 0.001953125f);
  if (magnitude == 127u) word = 0x7fc00000u;
  return float_of_bits(word | sign);
}
inline_ unsigned char float8_e4m3fn_of_float(float x) {
  const u32 bits = bits_of_float(x), magnitude = bits & 0x7fffffffu;
  u32 sign = (bits >> 24) & 128u;
  u32 word = (magnitude + 3288858623u + ((magnitude >> 20) & 1u)) >> 20;
  if (magnitude < 1015021568u)
    word = bits_of_float(float_of_bits(magnitude) + float_of_bits(1182793728u)) - 1182793728u;
  if (magnitude >= 1139277825u) word = 127u;
  if (magnitude > 0x7f800000u) word = 127u;
  return (unsigned char)(word | sign);
}

extern "C" __global__ void __launch_bounds__(64) e_64(unsigned char* p0, float* p1) {
  const int t0 = (int)threadIdx.x;
  const float v1 = p1[t0];
  const unsigned char v2 = float8_e4m3fn_of_float(v1);
  p0[t0] = v2;
}
