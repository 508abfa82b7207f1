/* See fit.h. With eigenvectors u_i and eigenvalues l_i of the mean second moment, the projector of
 * L dimensions keeps the first L:
 *
 *   whitened    down = U diag(1 / sqrt(l))   up = U diag(sqrt(l))    latents of unit energy
 *   orthogonal  down = U                     up = U
 *
 * up down' is the same projection either way, so the truncation error is too: what the directions
 * from L on hold of the samples' energy. */
#include "tools/fit/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/out.h"

/* Eigenvalues below this share of their mean count as it: a direction that the fit never saw must
 * not be blown up without limit when other samples have a little of it. */
#define LEAST_SHARE 1e-8

void fit_create(struct fit *f, const struct sample_shape *shape, double held_share)
{
    *f = (struct fit){.shape = *shape, .held_share = held_share};
    f->parts =
        out_alloc((size_t)shape->num_layers * shape->num_heads * NUM_PARTS, sizeof *f->parts);
    f->num_kept = out_alloc(shape->num_layers, sizeof *f->num_kept);
    for (uint32_t part = 0; part < NUM_PARTS; part++) {
        f->kept[part] = out_alloc(shape->num_layers, sizeof *f->kept[part]);
        for (uint32_t i = 0; i < shape->num_layers; i++)
            f->kept[part][i] =
                out_alloc((size_t)KEPT_MAX * shape->num_heads * shape->dim[part], sizeof(float));
    }
    for (uint32_t layer = 0; layer < shape->num_layers; layer++)
        for (uint32_t i = 0; i < shape->num_heads * NUM_PARTS; i++) {
            uint32_t part = i % NUM_PARTS, dim = shape->dim[part];
            struct fit_part *p = fit_part_at(f, layer, i / NUM_PARTS, part);
            p->fit = moments_new(dim);
            p->held_out = moments_new(dim);
            p->energy = out_alloc(dim, sizeof *p->energy);
            p->held_energy = out_alloc(dim, sizeof *p->held_energy);
        }
}

void fit_free(struct fit *f)
{
    size_t n = (size_t)f->shape.num_layers * f->shape.num_heads * NUM_PARTS;
    for (size_t i = 0; i < n; i++) {
        free(f->parts[i].fit.sums);
        free(f->parts[i].held_out.sums);
        free(f->parts[i].energy);
        free(f->parts[i].held_energy);
        spectrum_free(&f->parts[i].spectrum);
    }
    for (uint32_t part = 0; part < NUM_PARTS; part++) {
        for (uint32_t i = 0; i < f->shape.num_layers; i++)
            free(f->kept[part][i]);
        free(f->kept[part]);
    }
    free(f->num_kept);
    free(f->parts);
}

/* Held-out rows as they are, as long as there is room. */
static void keep(const struct fit *f, const struct samples *s, uint64_t first)
{
    const uint64_t have = f->num_kept[s->layer], room = KEPT_MAX - have;
    const uint64_t n = s->count - first < room ? s->count - first : room;
    for (uint32_t part = 0; part < NUM_PARTS; part++) {
        const size_t row = (size_t)f->shape.num_heads * f->shape.dim[part];
        memcpy(f->kept[part][s->layer] + have * row, s->rows[part] + first * row,
               n * row * sizeof(float));
    }
    f->num_kept[s->layer] += (uint32_t)n;
}

void fit_take(void *user, const struct samples *s)
{
    const struct fit *f = user;
    const uint64_t cut = s->total - (uint64_t)((double)s->total * f->held_share);
    const uint64_t seen = cut > s->first ? cut - s->first : 0,
                   fit = seen < s->count ? seen : s->count;
    for (uint32_t i = 0; i < f->shape.num_heads * NUM_PARTS; i++) {
        const uint32_t part = i % NUM_PARTS, head = i / NUM_PARTS, dim = f->shape.dim[part];
        const uint64_t stride = (uint64_t)f->shape.num_heads * dim;
        const float *rows = s->rows[part] + (uint64_t)head * dim;
        struct fit_part *p = fit_part_at(f, s->layer, head, part);
        moments_add(&p->fit, rows, fit, stride);
        moments_add(&p->held_out, rows + fit * stride, s->count - fit, stride);
    }
    keep(f, s, fit);
}

static double trace(const struct moments *m)
{
    double sum = 0;
    for (uint32_t i = 0; i < m->dim; i++)
        sum += m->sums[(size_t)i * m->dim + i];
    return sum;
}

int fit_solve(struct fit *f, struct engine_error *error)
{
    for (uint32_t layer = 0; layer < f->shape.num_layers; layer++)
        for (uint32_t i = 0; i < f->shape.num_heads * NUM_PARTS; i++) {
            const uint32_t part = i % NUM_PARTS, head = i / NUM_PARTS;
            struct fit_part *p = fit_part_at(f, layer, head, part);
            if (p->fit.count < p->fit.dim)
                return engine_fail(error, "%llu samples for %u dimensions; need at least as many",
                                   (unsigned long long)p->fit.count, p->fit.dim);
            if (!(trace(&p->fit) > 0) || !isfinite(trace(&p->fit)) ||
                !isfinite(trace(&p->held_out)))
                return engine_fail(error,
                                   "%ss of layer %u, head %u: all zero, or values that are not "
                                   "finite",
                                   part_name(part), layer, head);
            p->spectrum = spectrum_of(&p->fit);
            spectrum_energy(&p->spectrum, &p->fit, p->energy);
            spectrum_energy(&p->spectrum, &p->held_out, p->held_energy);
        }
    return 0;
}

static double mean_value(const struct spectrum *s)
{
    double sum = 0;
    for (uint32_t i = 0; i < s->dim; i++)
        sum += s->values[i];
    return sum / s->dim;
}

void fit_projector(const struct fit *f, uint32_t form, struct projector *p)
{
    for (uint32_t i = 0; i < f->shape.num_layers * f->shape.num_heads * NUM_PARTS; i++) {
        const uint32_t part = i % NUM_PARTS, head = i / NUM_PARTS % f->shape.num_heads,
                       layer = i / NUM_PARTS / f->shape.num_heads;
        const struct spectrum *s = &fit_part_at(f, layer, head, part)->spectrum;
        const uint32_t latent = p->latent[part];
        const size_t at = (size_t)head * s->dim * latent;
        const double least = LEAST_SHARE * mean_value(s);
        for (uint32_t k = 0; k < latent && k < s->dim; k++) {
            const double value = s->values[k] > least ? s->values[k] : least;
            const double scale = form == FORM_WHITENED ? sqrt(value) : 1;
            for (uint32_t d = 0; d < s->dim; d++) {
                const double u = s->vectors[(size_t)k * s->dim + d];
                p->layers[layer].down[part][at + (size_t)d * latent + k] = (float)(u / scale);
                p->layers[layer].up[part][at + (size_t)d * latent + k] = (float)(u * scale);
            }
        }
    }
}

/* Energy of the directions from `from` on. */
static double tail(const double *energy, uint32_t dim, uint32_t from)
{
    double sum = 0;
    for (uint32_t i = dim; i > from; i--) /* small ones first */
        sum += energy[i - 1];
    return sum;
}

struct truncation fit_truncation(const struct fit *f, uint32_t layer, uint32_t part,
                                 uint32_t latent_dim)
{
    const uint32_t first = layer == UINT32_MAX ? 0 : layer;
    const uint32_t end = layer == UINT32_MAX ? f->shape.num_layers : layer + 1;
    double lost = 0, all = 0, held_lost = 0, held_all = 0;
    struct truncation t = {.least = INFINITY};
    for (uint32_t i = first; i < end; i++)
        for (uint32_t head = 0; head < f->shape.num_heads; head++) {
            const struct fit_part *p = fit_part_at(f, i, head, part);
            const uint32_t dim = p->fit.dim;
            const double head_lost = tail(p->held_energy, dim, latent_dim);
            const double head_all = tail(p->held_energy, dim, 0);
            const double error = sqrt(head_lost / head_all);
            lost += tail(p->energy, dim, latent_dim);
            all += tail(p->energy, dim, 0);
            held_lost += head_lost;
            held_all += head_all;
            t.least = error < t.least ? error : t.least;
            t.most = error > t.most ? error : t.most;
        }
    t.fit = sqrt(lost / all);
    t.held_out = sqrt(held_lost / held_all);
    return t;
}
