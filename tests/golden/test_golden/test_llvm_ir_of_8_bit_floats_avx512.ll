target triple = "x86_64-unknown-linux-gnu"

define void @float8_scaled(ptr noalias readonly %table, i64 %begin, i64 %end) #0 {
entry:
  %p0 = load ptr, ptr %table, align 8
  %v1 = getelementptr inbounds i64, ptr %table, i64 1
  %p1 = load ptr, ptr %v1, align 8
  br label %loop0_2
loop0_2:
  %i0_4 = phi i64 [ 0, %entry ], [ %next47, %loop0_2 ]
  %v5 = mul nsw i64 %i0_4, 16
  %a6 = getelementptr i8, ptr %p0, i64 %v5
  %v7 = load <16 x i8>, ptr %a6, align 1
  %a8 = getelementptr i8, ptr %p1, i64 %v5
  %v9 = zext <16 x i8> %v7 to <16 x i32>
  %v10 = and <16 x i32> %v9, splat (i32 127)
  %v11 = and <16 x i32> %v9, splat (i32 128)
  %v12 = shl <16 x i32> %v11, splat (i32 24)
  %v13 = shl <16 x i32> %v10, splat (i32 20)
  %v14 = add <16 x i32> %v13, splat (i32 1006632960)
  %v15 = sitofp <16 x i32> %v10 to <16 x float>
  %v16 = fmul <16 x float> %v15, splat (float 0x3F60000000000000)
  %v17 = icmp ult <16 x i32> %v10, splat (i32 8)
  %v18 = bitcast <16 x float> %v16 to <16 x i32>
  %v19 = select <16 x i1> %v17, <16 x i32> %v18, <16 x i32> %v14
  %v20 = icmp eq <16 x i32> %v10, splat (i32 127)
  %v21 = select <16 x i1> %v20, <16 x i32> splat (i32 2143289344), <16 x i32> %v19
  %v22 = or <16 x i32> %v21, %v12
  %v23 = bitcast <16 x i32> %v22 to <16 x float>
  %v24 = fmul <16 x float> %v23, splat (float 0x4000000000000000)
  %v25 = bitcast <16 x float> %v24 to <16 x i32>
  %v26 = lshr <16 x i32> %v25, splat (i32 24)
  %v27 = and <16 x i32> %v26, splat (i32 128)
  %v28 = and <16 x i32> %v25, splat (i32 2147483647)
  %v29 = lshr <16 x i32> %v28, splat (i32 21)
  %v30 = and <16 x i32> %v29, splat (i32 1)
  %v31 = add <16 x i32> %v28, splat (i32 -938475521)
  %v32 = add <16 x i32> %v31, %v30
  %v33 = lshr <16 x i32> %v32, splat (i32 21)
  %v34 = bitcast <16 x i32> %v28 to <16 x float>
  %v35 = bitcast <16 x i32> splat (i32 1124073472) to <16 x float>
  %v36 = fadd <16 x float> %v34, %v35
  %v37 = bitcast <16 x float> %v36 to <16 x i32>
  %v38 = sub <16 x i32> %v37, splat (i32 1124073472)
  %v39 = icmp uge <16 x i32> %v28, splat (i32 947912704)
  %v40 = select <16 x i1> %v39, <16 x i32> %v33, <16 x i32> %v38
  %v41 = icmp uge <16 x i32> %v28, splat (i32 1198522368)
  %v42 = select <16 x i1> %v41, <16 x i32> splat (i32 124), <16 x i32> %v40
  %v43 = icmp ugt <16 x i32> %v28, splat (i32 2139095040)
  %v44 = select <16 x i1> %v43, <16 x i32> splat (i32 126), <16 x i32> %v42
  %v45 = or <16 x i32> %v44, %v27
  %v46 = trunc <16 x i32> %v45 to <16 x i8>
  store <16 x i8> %v46, ptr %a8, align 1
  %next47 = add nuw nsw i64 %i0_4, 1
  %v48 = icmp slt i64 %next47, 4
  br i1 %v48, label %loop0_2, label %after0_3, !llvm.loop !1
after0_3:
  ret void
}


attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = distinct !{!1, !0}
