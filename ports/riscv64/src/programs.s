# Functions that programs run in user mode, wherever they are mapped. A function has its arguments in
# a0, a1 and a2, and ends by a system call, with its result in a0.

.section .user, "ax"
.globl user_begin, user_end, hello, fill, check
.option norelax
user_begin:

hello:                          # a0: where the text goes; its length
    lla t0, text
    li t1, text_end - text
    mv t2, t1
1:  lb t3, 0(t0)
    sb t3, 0(a0)
    addi t0, t0, 1
    addi a0, a0, 1
    addi t2, t2, -1
    bnez t2, 1b
    mv a0, t1
    ecall

fill:                           # a0: memory, a1: pages, a2: a number
    li t3, 4096                 # a word at both ends of each page: pages left + a2
1:  add t2, a1, a2
    sd t2, 0(a0)
    add a0, a0, t3
    sd t2, -8(a0)
    addi a1, a1, -1
    bnez a1, 1b
    ecall

check:                          # likewise; 1 if the words are there
    li t3, 4096
1:  add t2, a1, a2
    ld t4, 0(a0)
    bne t4, t2, 2f
    add a0, a0, t3
    ld t4, -8(a0)
    bne t4, t2, 2f
    addi a1, a1, -1
    bnez a1, 1b
    li a0, 1
    ecall
2:  li a0, 0
    ecall

text:
    .ascii "hello from user mode"
text_end:
.balign 4096
user_end:
