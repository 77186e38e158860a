target triple = "x86_64-unknown-linux-gnu"

@variables_stage0_segments = internal constant [2 x { i64, i32, i32 }] [{ i64, i32, i32 } { i64 1, i32 0, i32 0 }, { i64, i32, i32 } { i64 2, i32 0, i32 4 }]
@variables_stage0_words = internal constant [8 x i32] [i32 0, i32 2, i32 3, i32 4, i32 1, i32 2, i32 4, i32 3]

define internal void @variables_body0(ptr noalias readonly %table, i64 %begin, i64 %end) #1 {
entry:
  %p0 = load ptr, ptr %table, align 8
  %v1 = getelementptr inbounds i64, ptr %table, i64 1
  %p1 = load ptr, ptr %v1, align 8
  %v2 = getelementptr inbounds i64, ptr %table, i64 2
  %v3 = load i64, ptr %v2, align 8
  %v4 = getelementptr inbounds i64, ptr %table, i64 3
  %v5 = load i64, ptr %v4, align 8
  %v6 = sitofp i64 %v5 to float
  %v9 = icmp slt i64 0, %v3
  br i1 %v9, label %loop0_7, label %after0_8
loop0_7:
  %i0_10 = phi i64 [ 0, %entry ], [ %next15, %loop0_7 ]
  %a11 = getelementptr float, ptr %p0, i64 %i0_10
  %a12 = getelementptr float, ptr %p1, i64 %i0_10
  %v13 = load float, ptr %a12, align 4
  %v14 = fadd float %v13, %v6
  store float %v14, ptr %a11, align 4
  %next15 = add nuw nsw i64 %i0_10, 1
  %v16 = icmp slt i64 %next15, %v3
  br i1 %v16, label %loop0_7, label %after0_8, !llvm.loop !1
after0_8:
  ret void
}

define void @variables_stage0(ptr noalias readonly %table, i64 %begin, i64 %end) #0 {
entry:
  %table0 = alloca [4 x i64], align 8
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %segment, label %out
segment:
  %number = phi i64 [ 0, %entry ], [ %following, %next ]
  %start = phi i64 [ 0, %entry ], [ %stop, %next ]
  %row = getelementptr inbounds { i64, i32, i32 }, ptr @variables_stage0_segments, i64 %number
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
  %words = getelementptr inbounds i32, ptr @variables_stage0_words, i32 %offset
  br label %shape0
shape0:
  %a1 = getelementptr inbounds i32, ptr %words, i64 0
  %v2 = load i32, ptr %a1, align 4
  %v3 = sext i32 %v2 to i64
  %a4 = getelementptr inbounds i64, ptr %table, i64 %v3
  %v5 = load i64, ptr %a4, align 8
  %a6 = getelementptr inbounds i64, ptr %table0, i64 0
  store i64 %v5, ptr %a6, align 8
  %a7 = getelementptr inbounds i32, ptr %words, i64 1
  %v8 = load i32, ptr %a7, align 4
  %v9 = sext i32 %v8 to i64
  %a10 = getelementptr inbounds i64, ptr %table, i64 %v9
  %v11 = load i64, ptr %a10, align 8
  %a12 = getelementptr inbounds i64, ptr %table0, i64 1
  store i64 %v11, ptr %a12, align 8
  %a13 = getelementptr inbounds i32, ptr %words, i64 2
  %v14 = load i32, ptr %a13, align 4
  %v15 = sext i32 %v14 to i64
  %a16 = getelementptr inbounds i64, ptr %table, i64 %v15
  %v17 = load i64, ptr %a16, align 8
  %a18 = getelementptr inbounds i64, ptr %table0, i64 2
  store i64 %v17, ptr %a18, align 8
  %a19 = getelementptr inbounds i32, ptr %words, i64 3
  %v20 = load i32, ptr %a19, align 4
  %v21 = sext i32 %v20 to i64
  %a22 = getelementptr inbounds i64, ptr %table, i64 %v21
  %v23 = load i64, ptr %a22, align 8
  %a24 = getelementptr inbounds i64, ptr %table0, i64 3
  store i64 %v23, ptr %a24, align 8
  call void @variables_body0(ptr %table0, i64 %low, i64 %high)
  br label %next
next:
  %following = add nuw nsw i64 %number, 1
  %more = icmp slt i64 %stop, %end
  br i1 %more, label %segment, label %out
out:
  ret void
}

define void @variables(ptr noalias readonly %table, i64 %begin, i64 %end) #0 {
entry:
  call void @variables_stage0(ptr %table, i64 0, i64 2)
  ret void
}


attributes #0 = { nounwind "prefer-vector-width"="256" "min-legal-vector-width"="256" }
attributes #1 = { noinline nounwind "prefer-vector-width"="256" "min-legal-vector-width"="256" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = distinct !{!1, !0}
