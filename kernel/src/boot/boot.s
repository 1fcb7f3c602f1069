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
    movl $boot_long, %esi

# Long mode with the boot tables; goes on at the address in ESI.
enter_long:
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
    andl $0x9ffffff3, %eax      # not EM, not TS, caches on
    orl $0x80010022, %eax       # PG, WP, NE, MP
    movl %eax, %cr0
    lgdtl boot_gdtr
    ljmpl $8, $1f

.code64
1:  movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    movl %esi, %esi
    jmp *%rsi

boot_long:
    movabsq $boot_stack_top, %rsp
    xorl %ebp, %ebp
    movl boot_info, %edi
    movabsq $boot_main, %rax
    call *%rax
    ud2

# The other CPUs, when they have left real mode.
.code32
other_start32:
    movl $16, %eax
    movl %eax, %ds
    movl $other_long, %esi
    jmp enter_long
.code64
other_long:
    movabsq $other_high, %rax
    jmp *%rax

# The kernel's tables have no low half, so they are loaded only from up here. A CPU that finds no stack came too late.
.text
other_high:
    movq other_root(%rip), %rax
    movq %rax, %cr3
    xorl %eax, %eax
    xchgq %rax, other_stack(%rip)
    testq %rax, %rax
    jz 1f
    movq %rax, %rsp
    xorl %ebp, %ebp
    call other_main
    ud2
1:  cli
    hlt
    jmp 1b

.section .boot.data,"awx",@progbits
# A CPU that starts up begins in real mode, in this code, copied to the page REAL_PAGE.
.set REAL_PAGE, 0x8000
.code16
.globl real_start
.globl real_end
real_start:
    cli
    cld
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl REAL_PAGE + (real_gdtr - real_start)
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $24, $other_start32
real_gdtr:
    .word boot_gdtr - boot_gdt - 1
    .long boot_gdt
real_end:
.code64
.align 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff    # 64-bit code
    .quad 0x00cf93000000ffff    # data
    .quad 0x00cf9b000000ffff    # 32-bit code
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
