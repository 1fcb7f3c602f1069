# Supervisor-mode access prevention: STAC opens user pages to the kernel, CLAC closes them. Both are three bytes of nothing until
# `user_access::enable_smap` writes the instructions in, on CPUs that have them; the sites are listed for it.
.macro STAC
771: .byte 0x0f, 0x1f, 0x00
    .pushsection .smap_sites,"a",@progbits
    .quad 771b, 0xcb010f
    .popsection
.endm
.macro CLAC
771: .byte 0x0f, 0x1f, 0x00
    .pushsection .smap_sites,"a",@progbits
    .quad 771b, 0xca010f
    .popsection
.endm

# The instruction at the given label may fault on a user address: go on at the second label then.
.macro FIXUP at, to
    .pushsection .fixups,"a",@progbits
    .quad \at, \to
    .popsection
.endm
