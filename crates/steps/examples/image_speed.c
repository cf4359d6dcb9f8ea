/* The work of `image_speed.rs` in C: libjpeg-turbo, then Pillow's bilinear filter with vectors of SSE4.1 as Pillow-SIMD
   has it, then ImageNet's numbers: `gcc -O3 -mavx2 image_speed.c -ljpeg -o image_speed`, `./image_speed FILE.jpg`. */

#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>

enum { SIDE = 224, PRECISION = 22, TAPS_MAX = 64 };

struct axis {
    int first[SIDE], count[SIDE];
    int32_t weights[SIDE][TAPS_MAX];
};

static void fill(struct axis *axis, int from) {
    double scale = (double)from / SIDE, filter = scale < 1 ? 1 : scale;
    for (int to = 0; to < SIDE; to++) {
        double centre = (to + 0.5) * scale, sum = 0, exact[TAPS_MAX];
        int first = centre - filter + 0.5 < 0 ? 0 : (int)(centre - filter + 0.5);
        int end = (int)(centre + filter + 0.5) > from ? from : (int)(centre + filter + 0.5);
        for (int at = first; at < end; at++) {
            double x = (at - centre + 0.5) / filter;
            sum += exact[at - first] = x < 0 ? (x > -1 ? 1 + x : 0) : (x < 1 ? 1 - x : 0);
        }
        axis->first[to] = first;
        axis->count[to] = end - first;
        for (int at = 0; at < end - first; at++)
            axis->weights[to][at] = (int32_t)(0.5 + exact[at] / sum * (1 << PRECISION));
    }
}

static __m128i pixel(const uint8_t *at) {
    int32_t word;
    memcpy(&word, at, 4);
    return _mm_cvtepu8_epi32(_mm_cvtsi32_si128(word));
}

static void put(uint8_t *at, __m128i sums) {
    sums = _mm_srai_epi32(sums, PRECISION);
    sums = _mm_packs_epi32(sums, sums);
    int32_t word = _mm_cvtsi128_si32(_mm_packus_epi16(sums, sums));
    memcpy(at, &word, 4);
}

static uint8_t *decode(const uint8_t *file, size_t size, int *width, int *height) {
    struct jpeg_decompress_struct state;
    struct jpeg_error_mgr errors;
    state.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&state);
    jpeg_mem_src(&state, file, size);
    jpeg_read_header(&state, TRUE);
    state.out_color_space = JCS_EXT_RGBX;
    jpeg_start_decompress(&state);
    *width = state.output_width;
    *height = state.output_height;
    uint8_t *pixels = malloc((size_t)*width * *height * 4);
    while (state.output_scanline < state.output_height) {
        uint8_t *row = pixels + (size_t)state.output_scanline * *width * 4;
        jpeg_read_scanlines(&state, &row, 1);
    }
    jpeg_finish_decompress(&state);
    jpeg_destroy_decompress(&state);
    return pixels;
}

static float *run(const uint8_t *file, size_t size, struct axis *axes) {
    int width, height;
    uint8_t *pixels = decode(file, size, &width, &height);
    fill(&axes[0], width);
    fill(&axes[1], height);
    uint8_t *across = malloc((size_t)SIDE * height * 4), down[SIDE * 4];
    __m128i half = _mm_set1_epi32(1 << (PRECISION - 1));
    for (int y = 0; y < height; y++)
        for (int x = 0; x < SIDE; x++) {
            const uint8_t *from = pixels + ((size_t)y * width + axes[0].first[x]) * 4;
            __m128i sums = half;
            for (int at = 0; at < axes[0].count[x]; at++)
                sums = _mm_add_epi32(sums, _mm_mullo_epi32(pixel(from + at * 4), _mm_set1_epi32(axes[0].weights[x][at])));
            put(across + ((size_t)y * SIDE + x) * 4, sums);
        }
    const float mean[] = {0.485f, 0.456f, 0.406f}, deviation[] = {0.229f, 0.224f, 0.225f};
    float *numbers = malloc(sizeof(float) * 3 * SIDE * SIDE);
    for (int y = 0; y < SIDE; y++) {
        for (int x = 0; x < SIDE; x++) {
            __m128i sums = half;
            for (int at = 0; at < axes[1].count[y]; at++) {
                const uint8_t *from = across + ((size_t)(axes[1].first[y] + at) * SIDE + x) * 4;
                sums = _mm_add_epi32(sums, _mm_mullo_epi32(pixel(from), _mm_set1_epi32(axes[1].weights[y][at])));
            }
            put(down + x * 4, sums);
        }
        for (int channel = 0; channel < 3; channel++)
            for (int x = 0; x < SIDE; x++)
                numbers[(channel * SIDE + y) * SIDE + x] = (down[x * 4 + channel] / 255.0f - mean[channel]) / deviation[channel];
    }
    free(across);
    free(pixels);
    return numbers;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

int main(int count, char **arguments) {
    FILE *stream = count > 1 ? fopen(arguments[1], "rb") : NULL;
    if (!stream)
        return 1;
    static uint8_t file[1 << 24];
    size_t size = fread(file, 1, sizeof file, stream);
    static struct axis axes[2];
    double times[2][200], sum = 0;
    for (int round = 0; round < 200; round++) {
        int width, height;
        double began = now();
        free(decode(file, size, &width, &height));
        times[0][round] = now() - began;
        began = now();
        float *numbers = run(file, size, axes);
        times[1][round] = now() - began;
        for (int at = 0; !round && at < 3 * SIDE * SIDE; at++)
            sum += numbers[at];
        free(numbers);
    }
    const char *names[] = {"decode, libjpeg-turbo", "224, Pillow bilinear, ImageNet, C"};
    for (int name = 0; name < 2; name++) {
        qsort(times[name], 200, sizeof(double), by_value);
        printf("%s: %.0f µs, median %.0f\n", names[name], times[name][0], times[name][100]);
    }
    printf("sum of the numbers: %.1f\n", sum);
}
