	.file	"<string>"
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
.LCPI0_0:
	.quad	8
	.quad	9
	.quad	10
	.quad	11
	.quad	12
	.quad	13
	.quad	14
	.quad	15
.LCPI0_1:
	.quad	0
	.quad	1
	.quad	2
	.quad	3
	.quad	4
	.quad	5
	.quad	6
	.quad	7
	.section	.rodata.cst8,"aM",@progbits,8
	.p2align	3, 0x0
.LCPI0_2:
	.quad	100
	.text
	.globl	row_sums
	.p2align	4
	.type	row_sums,@function
row_sums:
	cmpq	%rdx, %rsi
	jge	.LBB0_5
	movq	(%rdi), %rax
	movq	8(%rdi), %rcx
	vmovdqa64	.LCPI0_0(%rip), %zmm0
	movq	16(%rdi), %rdi
	vmovdqa64	.LCPI0_1(%rip), %zmm1
	vpbroadcastq	.LCPI0_2(%rip), %zmm2
	vxorps	%xmm3, %xmm3, %xmm3
	.p2align	4
.LBB0_2:
	vxorps	%xmm4, %xmm4, %xmm4
	imulq	$100, %rsi, %r8
	xorl	%r9d, %r9d
	.p2align	4
.LBB0_3:
	movq	%r9, %r10
	shlq	$4, %r10
	addq	%r8, %r10
	vpbroadcastq	%r9, %zmm5
	vpsllq	$4, %zmm5, %zmm5
	vporq	%zmm0, %zmm5, %zmm6
	vporq	%zmm1, %zmm5, %zmm5
	vpcmpgtq	%zmm5, %zmm2, %k0
	vpcmpgtq	%zmm6, %zmm2, %k1
	kunpckbw	%k0, %k1, %k1
	vmovups	(%rax,%r10,4), %zmm5 {%k1} {z}
	vmaxps	%zmm5, %zmm3, %zmm5
	movq	%r9, %r10
	shlq	$6, %r10
	vmovups	(%rcx,%r10), %zmm6 {%k1} {z}
	vfmadd231ps	%zmm6, %zmm5, %zmm4
	incq	%r9
	cmpq	$7, %r9
	jl	.LBB0_3
	vextractf64x4	$1, %zmm4, %ymm5
	vaddps	%zmm5, %zmm4, %zmm4
	vextractf128	$1, %ymm4, %xmm5
	vaddps	%xmm5, %xmm4, %xmm4
	vshufpd	$1, %xmm4, %xmm4, %xmm5
	vaddps	%xmm5, %xmm4, %xmm4
	vmovshdup	%xmm4, %xmm5
	vaddss	%xmm5, %xmm4, %xmm4
	vmovss	%xmm4, (%rdi,%rsi,4)
	incq	%rsi
	cmpq	%rdx, %rsi
	jl	.LBB0_2
.LBB0_5:
	vzeroupper
	retq
.Lfunc_end0:
	.size	row_sums, .Lfunc_end0-row_sums

	.section	".note.GNU-stack","",@progbits
