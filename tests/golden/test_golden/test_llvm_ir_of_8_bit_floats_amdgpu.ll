target triple = "amdgcn-amd-amdhsa"

define amdgpu_kernel void @float8_scaled(ptr addrspace(1) %p0, ptr addrspace(1) %p1) #0 {
entry:
  br label %loop0_1
loop0_1:
  %i0_3 = phi i64 [ 0, %entry ], [ %next46, %loop0_1 ]
  %v4 = mul nsw i64 %i0_3, 1
  %a5 = getelementptr i8, ptr addrspace(1) %p0, i64 %v4
  %v6 = load i8, ptr addrspace(1) %a5, align 1
  %a7 = getelementptr i8, ptr addrspace(1) %p1, i64 %v4
  %v8 = zext i8 %v6 to i32
  %v9 = and i32 %v8, 127
  %v10 = and i32 %v8, 128
  %v11 = shl i32 %v10, 24
  %v12 = shl i32 %v9, 20
  %v13 = add i32 %v12, 1006632960
  %v14 = sitofp i32 %v9 to float
  %v15 = fmul float %v14, 0x3F60000000000000
  %v16 = icmp ult i32 %v9, 8
  %v17 = bitcast float %v15 to i32
  %v18 = select i1 %v16, i32 %v17, i32 %v13
  %v19 = icmp eq i32 %v9, 127
  %v20 = select i1 %v19, i32 2143289344, i32 %v18
  %v21 = or i32 %v20, %v11
  %v22 = bitcast i32 %v21 to float
  %v23 = fmul float %v22, 0x4000000000000000
  %v24 = bitcast float %v23 to i32
  %v25 = lshr i32 %v24, 24
  %v26 = and i32 %v25, 128
  %v27 = and i32 %v24, 2147483647
  %v28 = lshr i32 %v27, 21
  %v29 = and i32 %v28, 1
  %v30 = add i32 %v27, -938475521
  %v31 = add i32 %v30, %v29
  %v32 = lshr i32 %v31, 21
  %v33 = bitcast i32 %v27 to float
  %v34 = bitcast i32 1124073472 to float
  %v35 = fadd float %v33, %v34
  %v36 = bitcast float %v35 to i32
  %v37 = sub i32 %v36, 1124073472
  %v38 = icmp uge i32 %v27, 947912704
  %v39 = select i1 %v38, i32 %v32, i32 %v37
  %v40 = icmp uge i32 %v27, 1198522368
  %v41 = select i1 %v40, i32 124, i32 %v39
  %v42 = icmp ugt i32 %v27, 2139095040
  %v43 = select i1 %v42, i32 126, i32 %v41
  %v44 = or i32 %v43, %v26
  %v45 = trunc i32 %v44 to i8
  store i8 %v45, ptr addrspace(1) %a7, align 1
  %next46 = add nuw nsw i64 %i0_3, 1
  %v47 = icmp slt i64 %next46, 64
  br i1 %v47, label %loop0_1, label %after0_2, !llvm.loop !1
after0_2:
  ret void
}


attributes #0 = { nounwind "amdgpu-flat-work-group-size"="1,1" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = distinct !{!1, !0}
