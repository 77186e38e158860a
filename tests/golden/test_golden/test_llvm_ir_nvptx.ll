target triple = "nvptx64-nvidia-cuda"

define ptx_kernel void @row_sums(ptr addrspace(1) %p0, ptr addrspace(1) %p1, ptr addrspace(1) %p2) #0 {
entry:
  %v1 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %v2 = zext i32 %v1 to i64
  br label %loop1_3
loop1_3:
  %i1_5 = phi i64 [ 0, %entry ], [ %next17, %loop1_3 ]
  %acc0_6 = phi float [ 0x0000000000000000, %entry ], [ %v16, %loop1_3 ]
  %v7 = mul nsw i64 %v2, 100
  %v8 = mul nsw i64 %i1_5, 1
  %v9 = add nsw i64 %v7, %v8
  %a10 = getelementptr float, ptr addrspace(1) %p0, i64 %v9
  %v11 = load float, ptr addrspace(1) %a10, align 4
  %a12 = getelementptr float, ptr addrspace(1) %p1, i64 %v8
  %v13 = load float, ptr addrspace(1) %a12, align 4
  %v14 = fcmp ogt float 0x0000000000000000, %v11
  %v15 = select i1 %v14, float 0x0000000000000000, float %v11
  %v16 = call float @llvm.fma.f32(float %v15, float %v13, float %acc0_6)
  %next17 = add nuw nsw i64 %i1_5, 1
  %v18 = icmp slt i64 %next17, 100
  br i1 %v18, label %loop1_3, label %after1_4, !llvm.loop !1
after1_4:
  %a19 = getelementptr float, ptr addrspace(1) %p2, i64 %v2
  store float %v16, ptr addrspace(1) %a19, align 4
  ret void
}

declare float @llvm.fma.f32(float, float, float)
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()

attributes #0 = { nounwind "nvvm.maxntid"="1" }
!0 = !{!"llvm.loop.unroll.disable"}
!1 = distinct !{!1, !0}
