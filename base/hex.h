#pragma once
/* Hexadecimal digits. */
/* The value of a digit in either case; -1: it is none. */
static inline int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}
