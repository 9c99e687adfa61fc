#!/bin/sh
# Writes the assembler source that carries the page of --page as it is: embed_page.sh OUT.S FILE
set -eu
printf '.section .rodata\n.globl serve_page_begin\nserve_page_begin: .incbin "%s"\n.globl serve_page_end\nserve_page_end: .byte 0\n.section .note.GNU-stack,"",@progbits\n' "$2" >"$1"
