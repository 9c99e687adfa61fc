/* What a model reads of an image: the decoded pixels, the resizing bit for bit as Pillow's, the size that the processor
 * chooses, the ids of tokens, the places at which they turn. The tower's numbers: test/golden/images.py. */
#include "test/unit/unit.h"

#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/json.h"
#include "cli/turn/image_files.h"
#include "engine/vision/image_cache.h"
#include "engine/vision/picture_formats.h"

static uint32_t crc32_of(const uint8_t *p, size_t n) {
    uint32_t c = 0xFFFFFFFF;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? 0xEDB88320 : 0);
    }
    return ~c;
}

static struct picture pattern(int width, int height) {
    struct picture p = {mem_alloc((size_t)width * (size_t)height * 3), width, height};
    for (int y = 0, i = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            p.rgb[i++] = (uint8_t)(x * x * 3 + y * 7);
            p.rgb[i++] = (uint8_t)(x * 11 + y * y * 5);
            p.rgb[i++] = (uint8_t)(x * y * 13 + x);
        }
    return p;
}

/* Checksums of what Pillow 13.0 makes of the same pattern. */
static void test_resampling_is_pillows(void **state) {
    static const struct {
        int from[2], to[2];
        uint32_t bicubic, bilinear;
    } cases[] = {{{37, 23}, {64, 48}, 0xeb0ce61b, 0x5b812286}, {{200, 150}, {64, 48}, 0x74b54f88, 0xe1e9f5f1},
                 {{64, 48}, {64, 20}, 0xa3a5fb9f, 0x3942598f}, {{5, 90}, {32, 90}, 0x97c218c9, 0xb97cdbb4},
                 {{1, 1}, {16, 16}, 0xf5a0f415, 0xf5a0f415},   {{333, 77}, {32, 32}, 0x22c0a118, 0x529e6f07},
                 {{64, 48}, {70, 42}, 0x76e97141, 0x65fcebe6}, {{60, 90}, {40, 49}, 0xbfc7e9b3, 0xd1388999},
                 {{60, 90}, {40, 50}, 0x79759ea8, 0x768a6a46}, {{500, 20}, {504, 14}, 0x8afb8653, 0xcb9437ff},
                 {{90, 50}, {100, 60}, 0xef5aebe7, 0x6cb75bfb}};
    struct error e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct picture p = pattern(cases[i].from[0], cases[i].from[1]), out;
        const size_t n = (size_t)cases[i].to[0] * (size_t)cases[i].to[1] * 3;
        assert_int_equal(resample_picture(&p, cases[i].to[0], cases[i].to[1], RESAMPLE_BICUBIC, &out, &e), 0);
        assert_int_equal(crc32_of(out.rgb, n), cases[i].bicubic);
        picture_free(&out);
        assert_int_equal(resample_picture(&p, cases[i].to[0], cases[i].to[1], RESAMPLE_BILINEAR, &out, &e), 0);
        assert_int_equal(crc32_of(out.rgb, n), cases[i].bilinear);
        picture_free(&out);
        picture_free(&p);
    }
}

/* Sizes that transformers' smart_resize() gives. */
static void test_sizes(void **state) {
    static const struct {
        int in[2], out[2];
    } cases[] = {{{640, 480}, {640, 480}},     {{100, 100}, {256, 256}}, {{1, 1}, {256, 256}},
                 {{4000, 3000}, {4000, 3008}}, {{48, 1000}, {64, 1184}}, {{80, 2000}, {64, 1984}},
                 {{10000, 9000}, {4288, 3872}}};
    const struct resample_limits l = {.factor = 32, .min_pixels = 65536, .max_pixels = 16777216};
    struct error e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int w = cases[i].in[0], h = cases[i].in[1];
        assert_int_equal(resample_smart_size(&l, &w, &h, &e), 0);
        assert_int_equal(w, cases[i].out[0]);
        assert_int_equal(h, cases[i].out[1]);
    }
    /* those of GLM-4.5V, which counts the pixels of two pictures */
    static const struct {
        int in[2], out[2];
    } glm[] = {{{640, 480}, {644, 476}},    {{1, 1}, {84, 84}},   {{500, 20}, {700, 28}},
               {{100, 10}, {280, 28}},      {{27, 27}, {84, 84}}, {{10000, 9000}, {2548, 2296}},
               {{4000, 3000}, {2800, 2100}}};
    const struct resample_limits two = {
        .factor = 28, .min_pixels = 112 * 112, .max_pixels = 28 * 28 * 15000, .frames = 2, .grows_sides = true};
    for (size_t i = 0; i < sizeof glm / sizeof *glm; i++) {
        int w = glm[i].in[0], h = glm[i].in[1];
        assert_int_equal(resample_smart_size(&two, &w, &h, &e), 0);
        assert_int_equal(w, glm[i].out[0]);
        assert_int_equal(h, glm[i].out[1]);
    }
    int w = 201, h = 1;
    assert_int_equal(resample_smart_size(&l, &w, &h, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "more than 200 times"));
}

/* Sizes that transformers' navit_resize() gives. */
static void test_padded_sizes(void **state) {
    static const struct {
        int in[2], out[2], padded[2];
    } cases[] = {{{640, 480}, {640, 480}, {644, 504}},
                 {{1, 1}, {1, 1}, {28, 28}},
                 {{28, 28}, {28, 28}, {28, 28}},
                 {{29, 27}, {29, 27}, {56, 28}},
                 {{4000, 3000}, {2073, 1554}, {2100, 1568}},
                 {{10000, 500}, {7168, 358}, {7168, 364}},
                 {{9000, 8000}, {1902, 1691}, {1904, 1708}},
                 {{3, 8000}, {2, 7168}, {28, 7168}}};
    const struct resample_limits l = {.factor = 28, .patch = 14, .most_patches = 16384, .most_side = 512};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int size[2] = {cases[i].in[0], cases[i].in[1]}, padded[2];
        resample_padded_size(&l, &size[0], &size[1], &padded[0], &padded[1]);
        assert_memory_equal(size, cases[i].out, sizeof size);
        assert_memory_equal(padded, cases[i].padded, sizeof padded);
    }
}

/* Sizes that transformers' get_aspect_ratio_preserving_size() gives. */
static void test_ratio_sizes(void **state) {
    static const struct {
        int in[2], out[2];
    } cases[] = {{{640, 480}, {912, 672}},   {{1, 1}, {768, 768}},       {{4000, 3000}, {912, 672}},
                 {{10000, 20}, {13440, 48}}, {{20, 10000}, {48, 13440}}, {{500, 20}, {3984, 144}},
                 {{33, 77}, {480, 1200}},    {{2520, 48}, {5808, 96}}};
    const struct resample_limits l = {.factor = 48, .patch = 16, .most_patches = 280 * 9, .keeps_ratio = true};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int size[2] = {cases[i].in[0], cases[i].in[1]};
        resample_ratio_size(&l, &size[0], &size[1]);
        assert_memory_equal(size, cases[i].out, sizeof size);
    }
}

static void test_orientation(void **state) {
    uint8_t exif[] = "Exif\0\0II*\0\10\0\0\0\2\0\0\1\3\0\1\0\0\0\0\0\0\0\22\1\3\0\1\0\0\0\6\0\0\0";
    const size_t n = sizeof exif - 1;
    assert_int_equal(picture_exif_orientation(exif, n), 6);
    assert_int_equal(picture_exif_orientation(exif + 6, n - 6), 6);
    exif[n - 4] = 9;
    assert_int_equal(picture_exif_orientation(exif, n), 1);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *copy = mem_alloc(cut + 1); /* so that a sanitizer sees what is read past the end */
        memcpy(copy, exif, cut);
        assert_int_equal(picture_exif_orientation(copy, cut), 1);
        mem_free(copy);
    }
    memcpy(exif + 10, "\xFF\xFF\xFF\xFF", 4); /* a list past the end */
    assert_int_equal(picture_exif_orientation(exif, n), 1);
}

static void test_alpha(void **state) {
    static const uint8_t rgba[] = {10, 20, 30, 255, 10, 20, 30, 0, 0, 100, 200, 128, 1, 2, 3, 1};
    uint8_t rgb[12];
    picture_on_white(rgb, rgba, 4);
    static const uint8_t pillow[] = {10, 20, 30, 255, 255, 255, 127, 177, 227, 254, 254, 254};
    assert_memory_equal(rgb, pillow, 12);
}

static void test_ids_and_places(void **state) {
    struct engine_image a = {.rows = 2, .cols = 3, .advance = 3, .hash = 7},
                        b = {.rows = 4, .cols = 1, .advance = 4, .hash = 8};
    for (int i = 0; i < 6; i++) {
        assert_true(image_id(&a, i) < -1);
        assert_int_not_equal(image_id(&a, i), image_id(&b, i));
        assert_int_not_equal(image_id(&a, i), image_id(&a, i + 1));
    }
    /* text, text, a (2 x 3), text, b (4 x 1), text: get_rope_index() gives these */
    const struct image_span s[] = {{&a, 2}, {&b, 9}};
    static const int32_t places[][3] = {{0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {2, 2, 3}, {2, 2, 4}, {2, 3, 2}, {2, 3, 3},
                                        {2, 3, 4}, {5, 5, 5}, {6, 6, 6}, {6, 7, 6}, {6, 8, 6}, {6, 9, 6}, {10, 10, 10}};
    for (int pos = 0; pos < 14; pos++) {
        int32_t at[3];
        image_place(s, 2, pos, at);
        assert_memory_equal(at, places[pos], sizeof at);
    }
    assert_int_equal(image_shift(s, 2, 1), 0);
    assert_int_equal(image_shift(s, 2, 8), -3);
    assert_int_equal(image_shift(s, 2, 13), -3);
    assert_int_equal(image_shift(s, 2, 100), -3);
}

/* Batches of a model whose tokens of an image see all of it. */
static void test_batches(void **state) {
    struct engine_image a = {.rows = 2, .cols = 3}, b = {.rows = 4, .cols = 1};
    const struct image_span s[] = {{&a, 2}, {&b, 8}};
    static const int ends[][3] = {{0, 1, 1}, {0, 2, 2}, {0, 3, 2}, {0, 7, 2},  {0, 8, 8},    {0, 9, 8},
                                  {2, 3, 8}, {2, 9, 8}, {5, 6, 8}, {8, 9, 12}, {10, 11, 12}, {12, 20, 20}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        assert_int_equal(image_batch_end(s, 2, ends[i][0], ends[i][1]), ends[i][2]);
}

/* A file that is opened again is not decoded again, whoever opened it; a damaged one is each time. */
static void test_opened_once(void **state) {
    static uint8_t png[] = {137, 80, 78,  71, 13, 10,  26,  10, 0,   0,  0,   13,  73,  72, 68,  82, 0,   0,
                            0,   1,  0,   0,  0,  1,   8,   2,  0,   0,  0,   144, 119, 83, 222, 0,  0,   0,
                            12,  73, 68,  65, 84, 120, 156, 99, 168, 96, 224, 3,   0,   1,  122, 0,  135, 25,
                            130, 5,  115, 0,  0,  0,   0,   73, 69,  78, 68,  174, 66,  96, 130};
    struct tower t = {.config = {.patch = 8, .merge = 2, .filter = RESAMPLE_BICUBIC}};
    t.config.limits = (struct resample_limits){.factor = 16, .patch = 8, .min_pixels = 256, .max_pixels = 4096};
    struct image_cache c;
    struct engine_image *first, *again, *other;
    struct error e;
    image_cache_init(&c);
    assert_int_equal(image_cache_open(&c, &first, &t, png, sizeof png, "a", &e), 0);
    assert_int_equal(image_cache_open(&c, &again, &t, png, sizeof png, "b", &e), 0);
    assert_ptr_equal(first, again);
    assert_true(c.n_decoded == 1 && c.n == 1 && c.bytes == sizeof png + 16 * 16 * 3);
    image_unref(&again);
    image_unref(&first);
    png[20] ^= 1; /* the header: its sum is wrong then */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(image_cache_open(&c, &other, &t, png, sizeof png, "a", &e), ERR_RUNTIME);
        assert_null(other);
    }
    png[20] ^= 1;
    assert_int_equal(c.n, 1);
    for (int i = 0; i < 2 * IMAGE_CACHE_MOST; i++) { /* files with other ends are other files */
        uint8_t longer[sizeof png + 2 * IMAGE_CACHE_MOST + 1] = {0};
        memcpy(longer, png, sizeof png);
        assert_int_equal(image_cache_open(&c, &other, &t, longer, sizeof png + 1 + (size_t)i, "a", &e), 0);
        image_unref(&other);
        assert_int_equal(image_cache_open(&c, &first, &t, png, sizeof png, "a", &e), 0);
        image_unref(&first);
    }
    assert_true(c.n == IMAGE_CACHE_MOST && c.n_decoded == 1 + 2 * IMAGE_CACHE_MOST); /* the latest used stay */
    image_cache_free(&c);
}

static void test_base64(void **state) {
    for (size_t n = 0; n < 70; n++) {
        uint8_t bytes[70];
        struct buf text = {0}, back = {0};
        for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(i * 37 + n);
        base64_put(&text, bytes, n);
        assert_int_equal(text.len, (n + 2) / 3 * 4);
        assert_int_equal(base64_decode(text.data ? text.data : "", text.len, &back), 0);
        assert_int_equal(back.len, n);
        if (n) assert_memory_equal(back.data, bytes, n);
        buf_free(&text);
        buf_free(&back);
    }
    struct buf b = {0};
    assert_int_equal(base64_decode("aGk", 3, &b), 0);
    assert_int_equal(base64_decode("aG\nk=", 5, &b), 0);
    assert_int_equal(b.len, 4);
    assert_int_equal(base64_decode("aG*k", 4, &b), ERR_RUNTIME);
    assert_int_equal(base64_decode("aG=k", 4, &b), ERR_RUNTIME);
    buf_free(&b);
}

static int read_list(struct image_files *l, const char *text) {
    struct arena a = {0};
    struct json root;
    struct error e;
    assert_int_equal(json_parse(&a, text, strlen(text), 0, "t", &root, &e), 0);
    const int rc = image_files_read(l, &root, 5);
    arena_free(&a);
    return rc;
}
static void test_saved_images(void **state) {
    static const char *const bad[] = {
        "{}",
        "[3]",
        "[{\"at\": 6, \"name\": \"a\", \"data\": \"aGk=\"}]",
        "[{\"at\": -1, \"name\": \"a\", \"data\": \"aGk=\"}]",
        "[{\"at\": 0, \"data\": \"aGk=\"}]",
        "[{\"at\": 0, \"name\": \"a\"}]",
        "[{\"at\": 0, \"name\": \"a\", \"data\": \"*\"}]",
        "[{\"at\": 3, \"name\": \"a\", \"data\": \"\"}, {\"at\": 2, \"name\": \"a\", \"data\": \"\"}]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct image_files l = {0};
        assert_int_equal(read_list(&l, bad[i]), ERR_MODEL);
        image_files_free(&l);
    }
    struct image_files l = {0}, again = {0};
    struct buf b = {0};
    assert_int_equal(image_files_add(&l, 1, "a \"b\".png", "\0\1\2", 3), 0);
    assert_int_equal(image_files_add(&l, 5, "c", "x", 1), 0);
    image_files_put_saved(&l, &b);
    assert_int_equal(read_list(&again, b.data), 0);
    assert_int_equal(again.n, 2);
    assert_string_equal(again.v[0].name, "a \"b\".png");
    assert_int_equal(again.v[0].bytes.len, 3);
    assert_int_equal(again.v[1].at, 5);
    b.len = 0;
    const struct buf text = {.data = (char *)"hello", .len = 5};
    image_files_put_parts(&l, &text, false, &b);
    assert_string_equal(
        b.data,
        "[{\"type\": \"text\", \"text\": \"h\"}, {\"type\": \"image\", \"name\": \"a \\\"b\\\".png\", \"data\": "
        "\"AAEC\"}, {\"type\": \"text\", \"text\": \"ello\"}, {\"type\": \"image\", \"name\": \"c\", \"data\": "
        "\"eA==\"}]");
    buf_free(&b);
    image_files_free(&l);
    image_files_free(&again);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resampling_is_pillows), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_padded_sizes),          cmocka_unit_test(test_ratio_sizes),
        cmocka_unit_test(test_orientation),           cmocka_unit_test(test_alpha),
        cmocka_unit_test(test_ids_and_places),        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_opened_once),           cmocka_unit_test(test_base64),
        cmocka_unit_test(test_saved_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
