/* The fit itself: samples in, a projector and its truncation errors out. */
#ifndef LKV_TOOLS_FIT_FIT_H
#define LKV_TOOLS_FIT_FIT_H

#include <jansson.h>
#include "tools/fit/moments.h"
#include "tools/fit/source.h"

enum { FORM_WHITENED, FORM_ORTHOGONAL };
enum { KEPT_MAX = 512 }; /* held-out tokens a layer that are kept as they are */

/* Keys or values of one head of one layer. */
struct fit_part {
    struct moments fit, held_out;
    struct spectrum spectrum;     /* of the fit's samples */
    double *energy, *held_energy; /* [D] of each direction */
};

struct fit {
    struct sample_shape shape;
    double held_share;       /* last share of each text that the fit never sees */
    struct fit_part *parts;  /* [layers, heads, NUM_PARTS] */
    float **kept[NUM_PARTS]; /* [layers] of [KEPT_MAX, heads, D]: the first held-out tokens */
    uint32_t *num_kept;      /* [layers] */
};

void fit_create(struct fit *f, const struct sample_shape *shape, double held_share);
void fit_free(struct fit *f);
/* A sample_fn; user is the struct fit. */
void fit_take(void *user, const struct samples *samples);
/* Eigenvectors and energies; -1 with a sentence for too few or broken samples. */
int fit_solve(struct fit *f, struct engine_error *error);
/* Matrices of the first p->latent directions; columns from D on, where L is D rounded up, are 0. */
void fit_projector(const struct fit *f, uint32_t form, struct projector *p);

static inline struct fit_part *fit_part_at(const struct fit *f, uint32_t layer, uint32_t head,
                                           uint32_t part)
{
    return &f->parts[((uint64_t)layer * f->shape.num_heads + head) * NUM_PARTS + part];
}

/* ||x - x'|| / ||x|| over heads, with the first latent_dim directions kept. */
struct truncation {
    double fit;                   /* on the fit's own samples */
    double held_out, least, most; /* all heads together; the best and the worst head */
};
/* layer UINT32_MAX: over all layers. */
struct truncation fit_truncation(const struct fit *f, uint32_t layer, uint32_t part,
                                 uint32_t latent_dim);

#endif
