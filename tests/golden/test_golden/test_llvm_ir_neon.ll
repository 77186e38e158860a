target triple = "aarch64-unknown-linux-gnu"

define void @row_sums(ptr noalias readonly %table, i64 %begin, i64 %end) #0 {
entry:
  %p0 = load ptr, ptr %table, align 8
  %v1 = getelementptr inbounds i64, ptr %table, i64 1
  %p1 = load ptr, ptr %v1, align 8
  %v2 = getelementptr inbounds i64, ptr %table, i64 2
  %p2 = load ptr, ptr %v2, align 8
  %v5 = icmp slt i64 %begin, %end
  br i1 %v5, label %loop0_3, label %after0_4
loop0_3:
  %i0_6 = phi i64 [ %begin, %entry ], [ %next29, %after1_8 ]
  br label %loop1_7
loop1_7:
  %i1_9 = phi i64 [ 0, %loop0_3 ], [ %next25, %loop1_7 ]
  %acc0_10 = phi <4 x float> [ splat (float 0x0000000000000000), %loop0_3 ], [ %v24, %loop1_7 ]
  %v11 = mul nsw i64 %i0_6, 100
  %v12 = mul nsw i64 %i1_9, 4
  %v13 = add nsw i64 %v11, %v12
  %v14 = insertelement <4 x i64> poison, i64 %v12, i64 0
  %v15 = shufflevector <4 x i64> %v14, <4 x i64> poison, <4 x i32> zeroinitializer
  %v16 = add nsw <4 x i64> %v15, <i64 0, i64 1, i64 2, i64 3>
  %v17 = icmp slt <4 x i64> %v16, splat (i64 100)
  %a18 = getelementptr float, ptr %p0, i64 %v13
  %v19 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr align 4 %a18, <4 x i1> %v17, <4 x float> splat (float 0x0000000000000000))
  %a20 = getelementptr float, ptr %p1, i64 %v12
  %v21 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr align 4 %a20, <4 x i1> %v17, <4 x float> splat (float 0x0000000000000000))
  %v22 = fcmp ogt <4 x float> splat (float 0x0000000000000000), %v19
  %v23 = select <4 x i1> %v22, <4 x float> splat (float 0x0000000000000000), <4 x float> %v19
  %v24 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v23, <4 x float> %v21, <4 x float> %acc0_10)
  %next25 = add nuw nsw i64 %i1_9, 1
  %v26 = icmp slt i64 %next25, 25
  br i1 %v26, label %loop1_7, label %after1_8, !llvm.loop !1
after1_8:
  %a27 = getelementptr float, ptr %p2, i64 %i0_6
  %v28 = call reassoc float @llvm.vector.reduce.fadd.v4f32(float 0x8000000000000000, <4 x float> %v24)
  store float %v28, ptr %a27, align 4
  %next29 = add nuw nsw i64 %i0_6, 1
  %v30 = icmp slt i64 %next29, %end
  br i1 %v30, label %loop0_3, label %after0_4, !llvm.loop !2
after0_4:
  ret void
}

declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)
declare <4 x float> @llvm.masked.load.v4f32.p0(ptr, <4 x i1>, <4 x float>)
declare float @llvm.vector.reduce.fadd.v4f32(float, <4 x float>)

attributes #0 = { nounwind "prefer-vector-width"="128" "min-legal-vector-width"="128" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = distinct !{!1, !0}
!2 = distinct !{!2, !0}
