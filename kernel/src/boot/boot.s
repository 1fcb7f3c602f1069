# PVH entry: 32-bit protected mode, flat segments, paging off, EBX = physical address of hvm_start_info.
# Builds throw-away tables (identity, direct map, image: 4 GiB in 2-MiB pages), enters long mode, calls boot_main in the higher half.

.section .note.Xen,"a",@note
.align 4
.long 4, 8, 18                  # name size, descriptor size, XEN_ELFNOTE_PHYS32_ENTRY
.asciz "Xen"
.quad _start32

.section .boot.head,"awx",@progbits
.code32
.globl _start32
_start32:
    cli
    cld
    movl %ebx, boot_info
    movl $boot_pd, %edi         # four directories of present, writable, large pages
    movl $0x83, %eax
1:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $8, %edi
    addl $0x200000, %eax
    jnc 1b

    movl $boot_pdpt_low, %edi
    movl $boot_pd + 3, %eax
    movl $4, %ecx
2:  movl %eax, (%edi)
    addl $8, %edi
    addl $0x1000, %eax
    loop 2b
    movl $boot_pd + 3, boot_pdpt_high + 510*8
    movl $boot_pd + 0x1003, boot_pdpt_high + 511*8
    movl $boot_pdpt_low + 3, boot_pml4
    movl $boot_pdpt_low + 3, boot_pml4 + 256*8
    movl $boot_pdpt_high + 3, boot_pml4 + 511*8

    movl %cr4, %eax
    orl $0x6a0, %eax            # PAE, PGE, OSFXSR, OSXMMEXCPT
    movl %eax, %cr4
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx      # EFER: SCE, LME, NXE
    rdmsr
    orl $0x901, %eax
    wrmsr
    movl %cr0, %eax
    andl $0xfffffff3, %eax      # not EM, not TS
    orl $0x80010022, %eax       # PG, WP, NE, MP
    movl %eax, %cr0
    lgdtl boot_gdtr
    ljmpl $8, $boot_long

.code64
boot_long:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    movabsq $boot_stack_top, %rsp
    xorl %ebp, %ebp
    movl boot_info, %edi
    movabsq $boot_main, %rax
    call *%rax
    ud2

.section .boot.data,"awx",@progbits
.align 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff    # 64-bit code
    .quad 0x00cf93000000ffff    # data
boot_gdtr:
    .word boot_gdtr - boot_gdt - 1
    .long boot_gdt
boot_info:
    .long 0

.section .boot.bss,"awx",@nobits
.align 4096
boot_pml4: .skip 4096
boot_pdpt_low: .skip 4096
boot_pdpt_high: .skip 4096
boot_pd: .skip 4*4096

.section .bss.boot_stack,"aw",@nobits
.align 4096
.globl boot_stack_guard
boot_stack_guard: .skip 4096        # left unmapped by the final tables
.skip 32768
.globl boot_stack_top
boot_stack_top:
.text
