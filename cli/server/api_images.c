#include "cli/server/api_images.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cli/server/api_members.h"
#include "cli/server/api_messages.h"

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory"); }

bool api_images_is_part(const struct json *part) {
    const struct json *type = json_get(part, "type");
    return json_is(type, "image_url") || json_is(type, "input_image") || json_is(type, "image");
}

/* Makes {"type": type, key: value}. */
static int make_part(struct api_request *r, const char *type, const char *key, const struct json *value,
                     struct json *out, struct error *e) {
    struct json *m = arena_alloc(&r->arena, 4 * sizeof *m);
    if (!m) return no_memory(e);
    m[0] = api_messages_word("type"), m[1] = api_messages_word(type);
    m[2] = api_messages_word(key), m[3] = *value;
    *out = (struct json){.type = JSON_OBJECT, .n = 2, .items = m};
    return 0;
}

/* Schemes of URLs and the word base64 may be in capitals. */
static bool is_data_url(const struct json *url) { return url->n >= 5 && !strncasecmp(url->string, "data:", 5); }

/* Finds the base64 text of a data: URL. */
static int read_url(const struct json *url, const char *where, struct json *data, struct error *e) {
    static const char mark[] = ";base64";
    if (!url || url->type != JSON_STRING) return error_set(e, ERR_USAGE, "%s: an image needs a url", where);
    if (!is_data_url(url))
        return error_set(
            e, ERR_USAGE,
            "%s: hearth fetches no images from the network; send the image itself, as a URL that begins with "
            "data:image/png;base64,",
            where);
    const char *at = memchr(url->string, ',', url->n < 256 ? url->n : 256);
    if (!at || (size_t)(at - url->string) < sizeof mark - 1 ||
        strncasecmp(at - (sizeof mark - 1), mark, sizeof mark - 1))
        return error_set(e, ERR_USAGE, "%s: the data: URL of an image must be in base64", where);
    at++;
    *data = (struct json){.type = JSON_STRING, .n = (uint32_t)(url->string + url->n - at), .string = at};
    return 0;
}

static int read_source(const struct json *source, const char *where, struct json *data, struct error *e) {
    const struct json *given = json_get(source, "data");
    if (json_is(json_get(source, "type"), "base64") && given && given->type == JSON_STRING) {
        if (is_data_url(given)) return read_url(given, where, data, e);
        return *data = *given, 0;
    }
    return error_set(
        e, ERR_USAGE,
        "%s.source: only images of type base64 with their data are supported; hearth fetches none from the "
        "network",
        where);
}

static int read_image(struct api_request *r, const struct json *part, const char *where, struct json *out,
                      struct error *e) {
    const struct json *url = json_get(part, "image_url");
    struct json data;
    if (json_is(json_get(part, "type"), "image")) TRY(read_source(json_get(part, "source"), where, &data, e));
    else if (api_members_present(json_get(part, "file_id")))
        return error_set(e, ERR_USAGE, "%s.file_id is not supported: hearth stores no files; send image_url", where);
    else TRY(read_url(url && url->type == JSON_OBJECT ? json_get(url, "url") : url, where, &data, e));
    return make_part(r, "image", "data", &data, out, e);
}

int api_images_join(struct api_request *r, const struct json *parts, const char *types, const char *where,
                    struct json *out, struct error *e) {
    bool any = false;
    struct json *list;
    for (uint32_t i = 0; i < parts->n; i++) any |= api_images_is_part(&parts->items[i]);
    const char *also = strncmp(types, "input_", 6) ? " and image_url" : " and input_image";
    if (!any) return api_messages_join(r, parts, types, also, where, out, e);
    struct json made;
    TRY(api_messages_array(r, parts->n, &made, &list, e));
    for (uint32_t i = 0; i < parts->n; i++) {
        char place[120];
        const struct json one = {.type = JSON_ARRAY, .n = 1, .items = &parts->items[i]};
        struct json text;
        snprintf(place, sizeof place, "%s[%u]", where, i);
        if (api_images_is_part(&parts->items[i])) TRY(read_image(r, &parts->items[i], place, &list[i], e));
        else {
            TRY(api_messages_join(r, &one, types, also, where, &text, e));
            TRY(make_part(r, "text", "text", &text, &list[i], e));
        }
    }
    *out = made;
    return 0;
}

int api_images_beside(struct api_request *r, const struct json *text, const struct json *images, const char *where,
                      struct json *out, struct error *e) {
    struct json made, *list;
    if (images->type != JSON_ARRAY) return error_set(e, ERR_USAGE, "%s: must be an array of base64 texts", where);
    TRY(api_messages_array(r, images->n + 1, &made, &list, e));
    for (uint32_t i = 0; i < images->n; i++) {
        struct json data = images->items[i];
        if (data.type != JSON_STRING) return error_set(e, ERR_USAGE, "%s[%u]: must be base64", where, i);
        if (is_data_url(&data)) TRY(read_url(&images->items[i], where, &data, e));
        TRY(make_part(r, "image", "data", &data, &list[i], e));
    }
    if (text->n) TRY(make_part(r, "text", "text", text, &list[images->n], e));
    made.n = images->n + (text->n > 0);
    *out = made;
    return 0;
}
