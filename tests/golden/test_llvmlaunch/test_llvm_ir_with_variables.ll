target triple = "x86_64-unknown-linux-gnu"

@variables_stage0_segments = internal constant [2 x { i64, i32, i32 }] [{ i64, i32, i32 } { i64 1, i32 0, i32 0 }, { i64, i32, i32 } { i64 2, i32 0, i32 4 }]
@variables_stage0_words = internal constant [8 x i32] [i32 0, i32 2, i32 3, i32 4, i32 1, i32 2, i32 4, i32 3]
@variables_entries = constant [1 x ptr] [ptr @variables_stage0]

define internal void @variables_body0(ptr noalias readonly %table, i64 %begin, i64 %end) #1 {
entry:
  %p0 = load ptr, ptr %table, align 8
  %v1 = getelementptr inbounds i64, ptr %table, i64 1
  %p1 = load ptr, ptr %v1, align 8
  %v2 = getelementptr inbounds i64, ptr %table, i64 2
  %v3 = load i64, ptr %v2, align 8
  %v4 = getelementptr inbounds i64, ptr %table, i64 3
  %v5 = load i64, ptr %v4, align 8
  %v6 = trunc i64 %v3 to i32
  %v7 = insertelement <8 x i32> poison, i32 %v6, i64 0
  %v8 = shufflevector <8 x i32> %v7, <8 x i32> poison, <8 x i32> zeroinitializer
  %v9 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %v8
  %a10 = getelementptr float, ptr %p0, i64 0
  %a11 = getelementptr float, ptr %p1, i64 0
  %v12 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %a11, <8 x i1> %v9, <8 x float> splat (float 0x0000000000000000))
  %v13 = sitofp i64 %v5 to float
  %v14 = insertelement <8 x float> poison, float %v13, i64 0
  %v15 = shufflevector <8 x float> %v14, <8 x float> poison, <8 x i32> zeroinitializer
  %v16 = fadd <8 x float> %v12, %v15
  %v20 = bitcast <8 x i1> %v9 to i8
  %v21 = icmp eq i8 %v20, -1
  br i1 %v21, label %whole17, label %part18
whole17:
  store <8 x float> %v16, ptr %a10, align 4
  br label %stored19
part18:
  call void @llvm.masked.store.v8f32.p0(<8 x float> %v16, ptr align 4 %a10, <8 x i1> %v9)
  br label %stored19
stored19:
  %v22 = add nsw i64 %v3, -8
  %v23 = trunc i64 %v22 to i32
  %v24 = insertelement <8 x i32> poison, i32 %v23, i64 0
  %v25 = shufflevector <8 x i32> %v24, <8 x i32> poison, <8 x i32> zeroinitializer
  %v26 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %v25
  %a27 = getelementptr float, ptr %p0, i64 8
  %a28 = getelementptr float, ptr %p1, i64 8
  %v29 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %a28, <8 x i1> %v26, <8 x float> splat (float 0x0000000000000000))
  %v30 = fadd <8 x float> %v29, %v15
  %v34 = bitcast <8 x i1> %v26 to i8
  %v35 = icmp eq i8 %v34, -1
  br i1 %v35, label %whole31, label %part32
whole31:
  store <8 x float> %v30, ptr %a27, align 4
  br label %stored33
part32:
  call void @llvm.masked.store.v8f32.p0(<8 x float> %v30, ptr align 4 %a27, <8 x i1> %v26)
  br label %stored33
stored33:
  %v36 = add nsw i64 %v3, -16
  %v37 = trunc i64 %v36 to i32
  %v38 = insertelement <8 x i32> poison, i32 %v37, i64 0
  %v39 = shufflevector <8 x i32> %v38, <8 x i32> poison, <8 x i32> zeroinitializer
  %v40 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %v39
  %a41 = getelementptr float, ptr %p0, i64 16
  %a42 = getelementptr float, ptr %p1, i64 16
  %v43 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %a42, <8 x i1> %v40, <8 x float> splat (float 0x0000000000000000))
  %v44 = fadd <8 x float> %v43, %v15
  %v48 = bitcast <8 x i1> %v40 to i8
  %v49 = icmp eq i8 %v48, -1
  br i1 %v49, label %whole45, label %part46
whole45:
  store <8 x float> %v44, ptr %a41, align 4
  br label %stored47
part46:
  call void @llvm.masked.store.v8f32.p0(<8 x float> %v44, ptr align 4 %a41, <8 x i1> %v40)
  br label %stored47
stored47:
  %v50 = add nsw i64 %v3, -24
  %v51 = trunc i64 %v50 to i32
  %v52 = insertelement <8 x i32> poison, i32 %v51, i64 0
  %v53 = shufflevector <8 x i32> %v52, <8 x i32> poison, <8 x i32> zeroinitializer
  %v54 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %v53
  %a55 = getelementptr float, ptr %p0, i64 24
  %a56 = getelementptr float, ptr %p1, i64 24
  %v57 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %a56, <8 x i1> %v54, <8 x float> splat (float 0x0000000000000000))
  %v58 = fadd <8 x float> %v57, %v15
  %v62 = bitcast <8 x i1> %v54 to i8
  %v63 = icmp eq i8 %v62, -1
  br i1 %v63, label %whole59, label %part60
whole59:
  store <8 x float> %v58, ptr %a55, align 4
  br label %stored61
part60:
  call void @llvm.masked.store.v8f32.p0(<8 x float> %v58, ptr align 4 %a55, <8 x i1> %v54)
  br label %stored61
stored61:
  ret void
}

define void @variables_stage0(ptr noalias readonly %table, i64 %begin, i64 %end) #0 {
entry:
  %tables = alloca [4 x i64], align 8
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
  %v7 = icmp slt i64 %word0_next, 4
  br i1 %v7, label %fill0, label %filled0
filled0:
  %a8 = getelementptr inbounds i64, ptr %tables, i64 0
  call void @variables_body0(ptr %a8, i64 %low, i64 %high)
  br label %next
next:
  %following = add nuw nsw i64 %number, 1
  %more = icmp slt i64 %stop, %end
  br i1 %more, label %segment, label %out
out:
  ret void
}

declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, <8 x i1>)

attributes #0 = { noinline optnone nounwind "prefer-vector-width"="256" "min-legal-vector-width"="256" }
attributes #1 = { noinline nounwind "prefer-vector-width"="256" "min-legal-vector-width"="256" }
