# Copies between kernel and user memory. A bad user address makes each return nonzero.

.text
# user_copy(dst, src, len): one side is user memory.
.balign 16
.globl user_copy
user_copy:
    STAC
    mov rcx, rdx
    shr rcx, 3
11: rep movsq
    and edx, 7
    jz 14f
12: movzx eax, byte ptr [rsi]
13: mov byte ptr [rdi], al
    inc rsi
    inc rdi
    dec edx
    jnz 12b
14: CLAC
    xor eax, eax
    ret
    FIXUP 11b, user_access_failed
    FIXUP 12b, user_access_failed
    FIXUP 13b, user_access_failed

# user_try_copy(dst, src, len): as user_copy, but a fault is the end of it; how many bytes were not copied.
.balign 16
.globl user_try_copy, user_try_copy_words, user_try_copy_bytes
user_try_copy:
    STAC
    mov rcx, rdx
    shr rcx, 3
user_try_copy_words:
    rep movsq
    mov ecx, edx
    and ecx, 7
user_try_copy_bytes:
    rep movsb
    CLAC
    xor eax, eax
    ret
15: CLAC
    lea rax, [rcx * 8]
    and edx, 7
    add rax, rdx
    ret
16: CLAC
    mov rax, rcx
    ret
    FIXUP user_try_copy_words, 15b
    FIXUP user_try_copy_bytes, 16b

# user_zero(dst, len)
.balign 16
.globl user_zero
user_zero:
    STAC
    xor eax, eax
    mov rcx, rsi
    shr rcx, 3
21: rep stosq
    and esi, 7
    mov ecx, esi
22: rep stosb
    CLAC
    xor eax, eax
    ret
    FIXUP 21b, user_access_failed
    FIXUP 22b, user_access_failed

user_access_failed:
    CLAC
    mov eax, 1
    ret

# user_string(dst, src, max): copies up to and without the zero byte; its length, max if there is none, -1 on a bad address.
.balign 16
.globl user_string
user_string:
    STAC
    xor eax, eax
    test rdx, rdx
    jz 32f
31: movzx ecx, byte ptr [rsi + rax]
    test cl, cl
    jz 32f
    mov byte ptr [rdi + rax], cl
    inc rax
    cmp rax, rdx
    jne 31b
32: CLAC
    ret
33: CLAC
    mov rax, -1
    ret
    FIXUP 31b, 33b

# user_load32(src, out: *mut u32)
.balign 16
.globl user_load32
user_load32:
    STAC
41: mov eax, [rdi]
    mov [rsi], eax
    CLAC
    xor eax, eax
    ret
    FIXUP 41b, user_access_failed

# user_peek32(src, out: *mut u32): as user_load32, but a fault is the end of it: nothing is brought in. May run with spin locks held.
.balign 16
.globl user_peek32, user_peek32_load
user_peek32:
    STAC
user_peek32_load:
    mov eax, [rdi]
    mov [rsi], eax
    CLAC
    xor eax, eax
    ret
    FIXUP user_peek32_load, user_access_failed

# user_try_exchange32(at, expected, new, found: *mut u32): as user_exchange32, but a fault is the end of it. May run with spin locks held.
.balign 16
.globl user_try_exchange32, user_try_exchange32_store
user_try_exchange32:
    STAC
    mov eax, esi
user_try_exchange32_store:
    lock cmpxchg dword ptr [rdi], edx
    mov [rcx], eax
    CLAC
    xor eax, eax
    ret
    FIXUP user_try_exchange32_store, user_access_failed

# user_exchange32(at, expected, new, found: *mut u32)
.balign 16
.globl user_exchange32
user_exchange32:
    STAC
    mov eax, esi
51: lock cmpxchg dword ptr [rdi], edx
    mov [rcx], eax
    CLAC
    xor eax, eax
    ret
    FIXUP 51b, user_access_failed
