# Programs for user mode, run wherever they are mapped. Each begins with a0: its memory, a1: pages
# there, a2: a number of its own. A call's number is in a7, its arguments in a0 and a1.

.section .user, "ax"
.globl user_begin, user_end, hello, forks, loans, sends, receives, presses
.option norelax
user_begin:

hello:
    lla a0, text
    li a1, text_end - text
    li a7, 1                    # print
    ecall
    li a0, 0
    j exit

forks:                          # writes; forks; the child sees that and writes; both keep their own
    call fill
    li a7, 2                    # fork
    ecall
    mv s2, a0
    mv a0, s0
    call check
    addi a2, a2, 100
    add a2, a2, s2
    call fill
    call check
    bnez s2, 1f
    li a0, 0
    j exit
1:  li a7, 3                    # wait: the child's exit code
    ecall
    bnez a0, fail
    mv a0, s0
    call check
    li a0, 0
    j exit

loans:                          # what the kernel has on loan stays as it was
    call fill
    li a7, 4                    # loan
    ecall
    mv a0, s0
    addi a2, a2, 100
    call fill
    li a7, 5                    # return: 0 if the kernel still saw the first words
    ecall
    bnez a0, fail
    mv a0, s0
    call check
    li a0, 0
    j exit

sends:
    call fill
    li a7, 6                    # send
    ecall
    li a0, 0
    j exit

receives:
    li a7, 7                    # receive: where they are
    ecall
    call check
    addi a2, a2, 100            # and they can be written
    call fill
    call check
    li a0, 0
    j exit

presses:                        # more memory than there is, again and again
    li s3, 3
1:  call fill
    call check
    addi a2, a2, 7
    addi s3, s3, -1
    bnez s3, 1b
    li a0, 0
    j exit

fail:
    li a0, 1
exit:
    li a7, 0
    ecall

fill:                           # a word at both ends of each page: pages left + a2
    mv s0, a0
    li t3, 4096
    mv t0, a0
    mv t1, a1
1:  add t2, t1, a2
    sd t2, 0(t0)
    add t0, t0, t3
    sd t2, -8(t0)
    addi t1, t1, -1
    bnez t1, 1b
    ret

check:
    li t3, 4096
    mv t0, a0
    mv t1, a1
1:  add t2, t1, a2
    ld t4, 0(t0)
    bne t4, t2, fail
    add t0, t0, t3
    ld t4, -8(t0)
    bne t4, t2, fail
    addi t1, t1, -1
    bnez t1, 1b
    ret

text:
    .ascii "hello from user mode\n"
text_end:
.balign 4096
user_end:
