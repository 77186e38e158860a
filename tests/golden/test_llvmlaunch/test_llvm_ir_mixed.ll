target triple = "x86_64-unknown-linux-gnu"

@mixed_stage0_segments = internal constant [3 x { i64, i32, i32 }] [{ i64, i32, i32 } { i64 1, i32 0, i32 0 }, { i64, i32, i32 } { i64 6, i32 1, i32 2 }, { i64, i32, i32 } { i64 7, i32 0, i32 6 }]
@mixed_stage0_words = internal constant [8 x i32] [i32 3, i32 4, i32 -1, i32 2, i32 1, i32 -1, i32 5, i32 6]
@mixed_entries = constant [2 x ptr] [ptr @mixed_stage0, ptr @mixed_stage1]

define internal void @mixed_body0(ptr noalias readonly %table, i64 %begin, i64 %end) #1 {
entry:
  %p0 = load ptr, ptr %table, align 8
  %v1 = getelementptr inbounds i64, ptr %table, i64 1
  %p1 = load ptr, ptr %v1, align 8
  %v4 = icmp slt i64 %begin, %end
  br i1 %v4, label %loop0_2, label %after0_3
loop0_2:
  %i0_5 = phi i64 [ %begin, %entry ], [ %next27, %after1_8 ]
  %v6 = mul nsw i64 %i0_5, 9
  br label %loop1_7
loop1_7:
  %i1_9 = phi i64 [ 0, %loop0_2 ], [ %next25, %loop1_7 ]
  %v10 = mul nsw i64 %i1_9, 8
  %v11 = call i64 @llvm.smin.i64(i64 %v10, i64 1)
  %a12 = getelementptr i32, ptr %p0, i64 %v11
  %v13 = add nsw i64 %v6, %v11
  %a14 = getelementptr float, ptr %p1, i64 %v13
  %v15 = load <8 x float>, ptr %a14, align 4
  %v16 = fmul <8 x float> %v15, splat (float 0x4024000000000000)
  %v17 = fcmp oge <8 x float> %v16, splat (float 0x41E0000000000000)
  %v18 = fcmp ult <8 x float> %v16, splat (float 0xC1E0000000000000)
  %v19 = or <8 x i1> %v17, %v18
  %v20 = select <8 x i1> %v19, <8 x float> zeroinitializer, <8 x float> %v16
  %v21 = fptosi <8 x float> %v20 to <8 x i32>
  %v22 = select <8 x i1> %v17, <8 x i32> splat (i32 2147483647), <8 x i32> %v21
  %v23 = fcmp olt <8 x float> %v16, splat (float 0xC1E0000000000000)
  %v24 = select <8 x i1> %v23, <8 x i32> splat (i32 -2147483648), <8 x i32> %v22
  store <8 x i32> %v24, ptr %a12, align 4
  %next25 = add nuw nsw i64 %i1_9, 1
  %v26 = icmp slt i64 %next25, 2
  br i1 %v26, label %loop1_7, label %after1_8, !llvm.loop !1
after1_8:
  %next27 = add nuw nsw i64 %i0_5, 1
  %v28 = icmp slt i64 %next27, %end
  br i1 %v28, label %loop0_2, label %after0_3, !llvm.loop !2
after0_3:
  ret void
}

define internal void @mixed_body1(ptr noalias readonly %table, i64 %begin, i64 %end) #1 {
entry:
  %p0 = load ptr, ptr %table, align 8
  %v1 = getelementptr inbounds i64, ptr %table, i64 1
  %p1 = load ptr, ptr %v1, align 8
  %a2 = getelementptr i32, ptr %p1, i64 0
  %v3 = load <8 x i32>, ptr %a2, align 4
  %v4 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, splat (i32 1)
  %a5 = getelementptr i32, ptr %p1, i64 8
  %v6 = call <8 x i32> @llvm.masked.load.v8i32.p0(ptr align 4 %a5, <8 x i1> %v4, <8 x i32> splat (i32 0))
  %v7 = add <8 x i32> %v3, %v6
  %v8 = call i32 @llvm.vector.reduce.add.v8i32(<8 x i32> %v7)
  %v9 = sitofp i32 %v8 to float
  %v12 = icmp slt i64 %begin, %end
  br i1 %v12, label %loop0_10, label %after0_11
loop0_10:
  %i0_13 = phi i64 [ %begin, %entry ], [ %next15, %loop0_10 ]
  %a14 = getelementptr float, ptr %p0, i64 %i0_13
  store float %v9, ptr %a14, align 4
  %next15 = add nuw nsw i64 %i0_13, 1
  %v16 = icmp slt i64 %next15, %end
  br i1 %v16, label %loop0_10, label %after0_11, !llvm.loop !3
after0_11:
  ret void
}

define internal void @mixed_body2(ptr noalias readonly %table, i64 %begin, i64 %end) #1 {
entry:
  %p0 = load ptr, ptr %table, align 8
  %v1 = getelementptr inbounds i64, ptr %table, i64 1
  %p1 = load ptr, ptr %v1, align 8
  br label %loop0_2
loop0_2:
  %i0_4 = phi i64 [ 0, %entry ], [ %next19, %loop0_2 ]
  %v5 = mul nsw i64 %i0_4, 24
  %v6 = call i64 @llvm.smin.i64(i64 %v5, i64 16)
  %a7 = getelementptr float, ptr %p0, i64 %v6
  %a8 = getelementptr float, ptr %p1, i64 %v6
  %v9 = load <8 x float>, ptr %a8, align 4
  %v10 = fmul <8 x float> %v9, splat (float 0x4008000000000000)
  store <8 x float> %v10, ptr %a7, align 4
  %a11 = getelementptr float, ptr %a7, i64 8
  %a12 = getelementptr float, ptr %a8, i64 8
  %v13 = load <8 x float>, ptr %a12, align 4
  %v14 = fmul <8 x float> %v13, splat (float 0x4008000000000000)
  store <8 x float> %v14, ptr %a11, align 4
  %a15 = getelementptr float, ptr %a7, i64 16
  %a16 = getelementptr float, ptr %a8, i64 16
  %v17 = load <8 x float>, ptr %a16, align 4
  %v18 = fmul <8 x float> %v17, splat (float 0x4008000000000000)
  store <8 x float> %v18, ptr %a15, align 4
  %next19 = add nuw nsw i64 %i0_4, 1
  %v20 = icmp slt i64 %next19, 2
  br i1 %v20, label %loop0_2, label %after0_3, !llvm.loop !4
after0_3:
  ret void
}

define void @mixed_stage1(ptr noalias readonly %table, i64 %begin, i64 %end) #1 {
entry:
  %p0 = load ptr, ptr %table, align 8
  %v1 = getelementptr inbounds i64, ptr %table, i64 1
  %p1 = load ptr, ptr %v1, align 8
  %v2 = getelementptr inbounds i64, ptr %table, i64 3
  %p2 = load ptr, ptr %v2, align 8
  %v3 = getelementptr inbounds i64, ptr %table, i64 5
  %p3 = load ptr, ptr %v3, align 8
  %a4 = getelementptr float, ptr %p0, i64 0
  %a5 = getelementptr float, ptr %p1, i64 0
  %v6 = load float, ptr %a5, align 4
  %a7 = getelementptr float, ptr %p1, i64 1
  %v8 = load float, ptr %a7, align 4
  %v9 = fadd float %v6, %v8
  %a10 = getelementptr float, ptr %p1, i64 2
  %v11 = load float, ptr %a10, align 4
  %a12 = getelementptr float, ptr %p1, i64 3
  %v13 = load float, ptr %a12, align 4
  %v14 = fadd float %v11, %v13
  %v15 = fadd float %v9, %v14
  %a16 = getelementptr float, ptr %p1, i64 4
  %v17 = load float, ptr %a16, align 4
  %v18 = fadd float %v15, %v17
  %a19 = getelementptr float, ptr %p3, i64 0
  %v20 = load <8 x float>, ptr %a19, align 4
  %a21 = getelementptr float, ptr %p2, i64 0
  %v22 = load <8 x float>, ptr %a21, align 4
  %v23 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v20, <8 x float> splat (float 0xBFF0000000000000), <8 x float> %v22)
  %a24 = getelementptr float, ptr %p3, i64 8
  %v25 = load <8 x float>, ptr %a24, align 4
  %a26 = getelementptr float, ptr %p2, i64 8
  %v27 = load <8 x float>, ptr %a26, align 4
  %v28 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v25, <8 x float> splat (float 0xBFF0000000000000), <8 x float> %v27)
  %v29 = fadd <8 x float> %v23, %v28
  %a30 = getelementptr float, ptr %p3, i64 16
  %v31 = load <8 x float>, ptr %a30, align 4
  %a32 = getelementptr float, ptr %p2, i64 16
  %v33 = load <8 x float>, ptr %a32, align 4
  %v34 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v31, <8 x float> splat (float 0xBFF0000000000000), <8 x float> %v33)
  %a35 = getelementptr float, ptr %p3, i64 24
  %v36 = load <8 x float>, ptr %a35, align 4
  %a37 = getelementptr float, ptr %p2, i64 24
  %v38 = load <8 x float>, ptr %a37, align 4
  %v39 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v36, <8 x float> splat (float 0xBFF0000000000000), <8 x float> %v38)
  %v40 = fadd <8 x float> %v34, %v39
  %v41 = fadd <8 x float> %v29, %v40
  %a42 = getelementptr float, ptr %p3, i64 32
  %v43 = load <8 x float>, ptr %a42, align 4
  %a44 = getelementptr float, ptr %p2, i64 32
  %v45 = load <8 x float>, ptr %a44, align 4
  %v46 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v43, <8 x float> splat (float 0xBFF0000000000000), <8 x float> %v45)
  %v47 = fadd <8 x float> %v41, %v46
  %v48 = call reassoc float @llvm.vector.reduce.fadd.v8f32(float 0x8000000000000000, <8 x float> %v47)
  %v49 = fadd float %v18, %v48
  store float %v49, ptr %a4, align 4
  ret void
}

define void @mixed_stage0(ptr noalias readonly %table, i64 %begin, i64 %end) #0 {
entry:
  %arrays = alloca [1 x i64], align 8
  %scratch0 = alloca [36 x i8], align 64
  %place0 = getelementptr inbounds i64, ptr %arrays, i64 0
  store ptr %scratch0, ptr %place0, align 8
  %arrays_end = getelementptr inbounds i64, ptr %arrays, i64 1
  %tables = alloca [4 x i64], align 8
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %segment, label %out
segment:
  %number = phi i64 [ 0, %entry ], [ %following, %next ]
  %start = phi i64 [ 0, %entry ], [ %stop, %next ]
  %row = getelementptr inbounds { i64, i32, i32 }, ptr @mixed_stage0_segments, i64 %number
  %stop = load i64, ptr %row, align 8
  %overlaps = icmp sgt i64 %stop, %begin
  br i1 %overlaps, label %inside, label %next
inside:
  %early = icmp sgt i64 %start, %begin
  %from = select i1 %early, i64 %start, i64 %begin
  %low = sub i64 %from, %start
  %late = icmp slt i64 %stop, %end
  %to = select i1 %late, i64 %stop, i64 %end
  %high = sub i64 %to, %start
  %offset_at = getelementptr inbounds { i64, i32, i32 }, ptr %row, i64 0, i32 2
  %offset = load i32, ptr %offset_at, align 4
  %words = getelementptr inbounds i32, ptr @mixed_stage0_words, i32 %offset
  %shape_at = getelementptr inbounds { i64, i32, i32 }, ptr %row, i64 0, i32 1
  %shape = load i32, ptr %shape_at, align 4
  switch i32 %shape, label %shape0 [ i32 1, label %shape1 ]
shape0:
  br label %fill0
fill0:
  %word0 = phi i64 [ 0, %shape0 ], [ %word0_next, %fill0 ]
  %a1 = getelementptr inbounds i32, ptr %words, i64 %word0
  %v2 = load i32, ptr %a1, align 4
  %v3 = sext i32 %v2 to i64
  %a4 = getelementptr inbounds i64, ptr %table, i64 %v3
  %v5 = load i64, ptr %a4, align 8
  %a6 = getelementptr inbounds i64, ptr %tables, i64 %word0
  store i64 %v5, ptr %a6, align 8
  %word0_next = add nuw nsw i64 %word0, 1
  %v7 = icmp slt i64 %word0_next, 2
  br i1 %v7, label %fill0, label %filled0
filled0:
  %a8 = getelementptr inbounds i64, ptr %tables, i64 0
  call void @mixed_body2(ptr %a8, i64 %low, i64 %high)
  br label %next
shape1:
  br label %fill1
fill1:
  %word1 = phi i64 [ 0, %shape1 ], [ %word1_next, %fill1 ]
  %a9 = getelementptr inbounds i32, ptr %words, i64 %word1
  %v10 = load i32, ptr %a9, align 4
  %v11 = sext i32 %v10 to i64
  %v12 = icmp slt i64 %v11, 0
  %v13 = select i1 %v12, ptr %arrays_end, ptr %table
  %a14 = getelementptr inbounds i64, ptr %v13, i64 %v11
  %v15 = load i64, ptr %a14, align 8
  %a16 = getelementptr inbounds i64, ptr %tables, i64 %word1
  store i64 %v15, ptr %a16, align 8
  %word1_next = add nuw nsw i64 %word1, 1
  %v17 = icmp slt i64 %word1_next, 4
  br i1 %v17, label %fill1, label %filled1
filled1:
  %a18 = getelementptr inbounds i64, ptr %tables, i64 0
  %a19 = getelementptr inbounds i64, ptr %tables, i64 2
  br label %block1
block1:
  %p1 = phi i64 [ %low, %filled1 ], [ %p1_next, %block1 ]
  %p1_next = add nuw nsw i64 %p1, 1
  call void @mixed_body0(ptr %a18, i64 %p1, i64 %p1_next)
  call void @mixed_body1(ptr %a19, i64 %p1, i64 %p1_next)
  %again1 = icmp slt i64 %p1_next, %high
  br i1 %again1, label %block1, label %next
next:
  %following = add nuw nsw i64 %number, 1
  %more = icmp slt i64 %stop, %end
  br i1 %more, label %segment, label %out
out:
  ret void
}

declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
declare <8 x i32> @llvm.masked.load.v8i32.p0(ptr, <8 x i1>, <8 x i32>)
declare float @llvm.vector.reduce.fadd.v8f32(float, <8 x float>)
declare i32 @llvm.vector.reduce.add.v8i32(<8 x i32>)
declare i64 @llvm.smin.i64(i64, i64)

attributes #0 = { noinline optnone nounwind "prefer-vector-width"="256" "min-legal-vector-width"="256" }
attributes #1 = { noinline nounwind "prefer-vector-width"="256" "min-legal-vector-width"="256" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = distinct !{!1, !0}
!2 = distinct !{!2, !0}
!3 = distinct !{!3, !0}
!4 = distinct !{!4, !0}
