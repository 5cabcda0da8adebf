/* Queues and what runs on them. An encoder is a list of ops with their operands; sealed, it is a command buffer; a
 * submit runs the list, once or again, and returns when it is done. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "platform.h"

#include <errno.h>
#include <time.h>

typedef struct command {
    op *what;
    uint64_t first_view;
} command;

/* An encoder until `encoder_finish`, then a command buffer. It keeps alive what it names. */
typedef struct commands {
    object base;
    command *list;
    uint64_t num, capacity;
    view *views;
    uint64_t num_views, view_capacity;
    uint64_t queue; /* the id of the one that it is submitted to */
    int one_shot;
    int submitted;
} commands;

typedef struct queue {
    object base;
    pthread_mutex_t lock; /* of what follows, and only for a moment: `completed` must not block */
    pthread_cond_t moved;
    uint64_t submitted;
    uint64_t completed; /* UINT64_MAX after a failure */
    uint32_t failure;   /* the status of the first failure: a queue that failed stays so */
    char why[512];
} queue;

/* Queues */

static void queue_destroy(object *base) {
    queue *self = (queue *)base;
    pthread_cond_destroy(&self->moved);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static uint32_t queue_create(void *handle, const halyard_queue_desc *theirs, void **out, uint64_t *id,
                             halyard_error *err) {
    device *owner = (device *)handle;
    halyard_queue_desc desc;
    queue *self;
    uint32_t status = HALYARD_READ(halyard_queue_desc, &desc, theirs, err);
    if (status != HALYARD_STATUS_OK) return status;
    if (desc.kind > HALYARD_QUEUE_COPY || desc.flags != 0) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "a queue of kind %u with flags %llu is not known",
                            (unsigned)desc.kind, (unsigned long long)desc.flags);
    }
    self = (queue *)calloc(1, sizeof(queue));
    if (self == NULL) return halyard_fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "no memory for a queue");
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->moved, NULL);
    status = object_add(&self->base, owner, QUEUE, queue_destroy, err);
    if (status != HALYARD_STATUS_OK) {
        queue_destroy(&self->base);
        return status;
    }
    *out = self;
    *id = self->base.id;
    return HALYARD_STATUS_OK;
}

static uint64_t queue_completed(void *handle) {
    queue *self = (queue *)handle;
    uint64_t number;
    pthread_mutex_lock(&self->lock);
    number = self->completed;
    pthread_mutex_unlock(&self->lock);
    return number;
}

/* When `timeout_ns` from now is. */
static struct timespec deadline(uint64_t timeout_ns) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += (time_t)(timeout_ns / 1000000000);
    at.tv_nsec += (long)(timeout_ns % 1000000000);
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec += 1;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

/* A number that was never submitted is a mistake, and not a reason to wait. */
static uint32_t queue_wait(void *handle, uint64_t number, uint64_t timeout_ns, halyard_error *err) {
    queue *self = (queue *)handle;
    struct timespec until = deadline(timeout_ns);
    uint32_t status = HALYARD_STATUS_OK;
    pthread_mutex_lock(&self->lock);
    if (number > self->submitted) {
        status = halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "waits for submit %llu of %llu",
                              (unsigned long long)number, (unsigned long long)self->submitted);
    }
    while (status == HALYARD_STATUS_OK && self->completed < number) {
        if (timeout_ns == UINT64_MAX) {
            pthread_cond_wait(&self->moved, &self->lock);
        } else if (pthread_cond_timedwait(&self->moved, &self->lock, &until) == ETIMEDOUT) {
            status = halyard_fail(err, HALYARD_STATUS_TIMEOUT, "submit %llu still runs", (unsigned long long)number);
        }
    }
    if (self->failure != HALYARD_STATUS_OK) status = halyard_fail(err, self->failure, "%s", self->why);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* Later submits see the bytes, earlier ones do not. All writes are checked before the first is made. */
static uint32_t queue_write_step(void *handle, const halyard_step_write *writes, uint32_t num, uint32_t stride,
                                 halyard_error *err) {
    queue *self = (queue *)handle;
    uint32_t status = HALYARD_STATUS_OK;
    for (int making = 0; making < 2 && status == HALYARD_STATUS_OK; making++) {
        for (uint32_t i = 0; i < num && status == HALYARD_STATUS_OK; i++) {
            const uint8_t *at = (const uint8_t *)writes + (uint64_t)i * stride;
            halyard_step_write write;
            buffer *memory;
            status = HALYARD_READ(halyard_step_write, &write, (const halyard_step_write *)(const void *)at, err);
            if (status != HALYARD_STATUS_OK) break;
            memory = (buffer *)object_find(self->base.owner, BUFFER, write.buffer, err);
            if (memory == NULL) {
                status = HALYARD_STATUS_INVALID_ARGUMENT;
                break;
            }
            if (making) {
                status = buffer_write(memory, write.offset, write.bytes, write.len, err);
            } else if (!buffer_has(memory, write.offset, write.len, err)) {
                status = HALYARD_STATUS_INVALID_ARGUMENT;
            }
            object_release(&memory->base);
        }
    }
    return status;
}

/* The ops here take what they need from malloc. */
static uint32_t queue_reserve_scratch(void *handle, uint64_t bytes, halyard_error *err) {
    (void)handle, (void)bytes, (void)err;
    return HALYARD_STATUS_OK;
}

/* Encoders and command buffers */

static void commands_destroy(object *base) {
    commands *self = (commands *)base;
    for (uint64_t i = 0; i < self->num; i++) object_release(&self->list[i].what->base);
    for (uint64_t i = 0; i < self->num_views; i++) {
        if (self->views[i].memory != NULL) object_release(&self->views[i].memory->base);
    }
    free(self->list);
    free(self->views);
    free(self);
}

static uint32_t encoder_create(void *handle, const halyard_encoder_desc *theirs, void **out, halyard_error *err) {
    queue *of = (queue *)handle;
    halyard_encoder_desc desc;
    commands *self;
    uint32_t status = HALYARD_READ(halyard_encoder_desc, &desc, theirs, err);
    if (status != HALYARD_STATUS_OK) return status;
    if (desc.mode > HALYARD_ENCODER_REUSABLE || desc.flags != 0) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "an encoder of mode %u with flags %llu is not known",
                            (unsigned)desc.mode, (unsigned long long)desc.flags);
    }
    self = (commands *)calloc(1, sizeof(commands));
    if (self == NULL) return halyard_fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "no memory for an encoder");
    self->base.owner = of->base.owner;
    self->queue = of->base.id;
    self->one_shot = desc.mode == HALYARD_ENCODER_ONE_SHOT;
    *out = self;
    return HALYARD_STATUS_OK;
}

static void encoder_drop(void *handle) { commands_destroy((object *)handle); }

/* Room for one more command with `operands` views. */
static int make_room(commands *self, uint64_t operands) {
    if (self->num == self->capacity) {
        uint64_t capacity = 2 * self->capacity + 16;
        command *list = (command *)realloc(self->list, capacity * sizeof(command));
        if (list == NULL) return 0;
        self->list = list;
        self->capacity = capacity;
    }
    if (self->num_views + operands > self->view_capacity) {
        uint64_t capacity = 2 * self->view_capacity + 64;
        view *views = (view *)realloc(self->views, capacity * sizeof(view));
        if (views == NULL) return 0;
        self->views = views;
        self->view_capacity = capacity;
    }
    return 1;
}

static uint32_t bind(view *self, const op *what, uint32_t index, const halyard_tensor *tensor, halyard_error *err) {
    char letter = what->kind->operands[index];
    memset(self, 0, sizeof *self);
    if (tensor != NULL) return view_bind(self, what->base.owner, tensor, err);
    if (letter >= 'A' && letter <= 'Z') return HALYARD_STATUS_OK;
    return halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "%s: operand %u is required and absent", what->kind->name,
                        (unsigned)index);
}

/* Ids and ranges are checked here, so that the list keeps what it names. After a failure the list is as it was. */
static uint32_t encode(void *handle, uint64_t id, const halyard_tensor *operands, uint32_t num, halyard_error *err) {
    commands *self = (commands *)handle;
    op *what = (op *)object_find(self->base.owner, OP, id, err);
    uint32_t known, bound = 0, status;
    view *views;
    if (what == NULL) return HALYARD_STATUS_INVALID_ARGUMENT;
    known = (uint32_t)strlen(what->kind->operands);
    status = halyard_check_operands(operands, num, known, err);
    if (status == HALYARD_STATUS_OK && !make_room(self, known)) {
        status = halyard_fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "no memory for one more command");
    }
    views = self->views + self->num_views;
    while (status == HALYARD_STATUS_OK && bound < known) {
        status = bind(&views[bound], what, bound, halyard_operand(operands, num, bound), err);
        if (status == HALYARD_STATUS_OK) bound++;
    }
    if (status != HALYARD_STATUS_OK) {
        for (uint32_t i = 0; i < bound; i++) {
            if (views[i].memory != NULL) object_release(&views[i].memory->base);
        }
        object_release(&what->base);
        return status;
    }
    self->list[self->num].what = what;
    self->list[self->num].first_view = self->num_views;
    self->num++;
    self->num_views += known;
    return HALYARD_STATUS_OK;
}

/* Consumes the encoder, also when it fails. */
static uint32_t encoder_finish(void *handle, void **out, uint64_t *id, halyard_error *err) {
    commands *self = (commands *)handle;
    uint32_t status = object_add(&self->base, self->base.owner, COMMANDS, commands_destroy, err);
    if (status != HALYARD_STATUS_OK) {
        commands_destroy(&self->base);
        return status;
    }
    *out = self;
    *id = self->base.id;
    return HALYARD_STATUS_OK;
}

/* Submits */

static uint32_t run(const commands *self, halyard_error *err) {
    for (uint64_t i = 0; i < self->num; i++) {
        const op *what = self->list[i].what;
        uint32_t status = what->kind->run(what, self->views + self->list[i].first_view, err);
        if (status != HALYARD_STATUS_OK) return status;
    }
    return HALYARD_STATUS_OK;
}

/* Runs what is found, as the queue's next number. How it went is told by `queue_wait`. */
static uint64_t run_all(queue *self, commands *const *found, uint32_t num) {
    char text[400] = "";
    halyard_error why;
    uint64_t number;
    uint32_t status = HALYARD_STATUS_OK;
    memset(&why, 0, sizeof why);
    why.struct_size = (uint32_t)sizeof why;
    why.text = (uint8_t *)text;
    why.text_capacity = (uint32_t)sizeof text - 1;
    pthread_mutex_lock(&self->lock);
    number = ++self->submitted;
    pthread_mutex_unlock(&self->lock);
    for (uint32_t i = 0; i < num && status == HALYARD_STATUS_OK; i++) status = run(found[i], &why);
    pthread_mutex_lock(&self->lock);
    self->completed = status == HALYARD_STATUS_OK ? number : UINT64_MAX;
    if (status != HALYARD_STATUS_OK) {
        text[why.text_len] = 0;
        snprintf(self->why, sizeof self->why, "submit %llu: %s", (unsigned long long)number, text);
        self->failure = status;
    }
    pthread_cond_broadcast(&self->moved);
    pthread_mutex_unlock(&self->lock);
    return number;
}

/* Waits until other queues have done what this submit comes after. */
static uint32_t wait_for(device *owner, const halyard_queue_wait *waits, uint32_t num, halyard_error *err) {
    uint32_t status = HALYARD_STATUS_OK;
    for (uint32_t i = 0; i < num && status == HALYARD_STATUS_OK; i++) {
        queue *other = (queue *)object_find(owner, QUEUE, waits[i].queue, err);
        if (other == NULL) return HALYARD_STATUS_INVALID_ARGUMENT;
        status = queue_wait(other, waits[i].number, UINT64_MAX, err);
        object_release(&other->base);
    }
    return status;
}

/* A command buffer goes to the queue that it was encoded for, a one-shot one once. Marks all of them, or none. */
static uint32_t mark_submitted(const queue *of, commands *const *found, uint32_t num, halyard_error *err) {
    uint32_t marked = 0;
    while (marked < num && found[marked]->queue == of->base.id && !(found[marked]->one_shot && found[marked]->submitted)) {
        found[marked++]->submitted = 1;
    }
    if (marked == num) return HALYARD_STATUS_OK;
    while (marked > 0) found[--marked]->submitted = 0;
    return halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT,
                        "a command buffer of another queue, or a one-shot one that was submitted before");
}

/* What the caller did wrong is answered here, and nothing has run then. One thread at a time submits to a queue. */
static uint32_t queue_submit(void *handle, const uint64_t *ids, uint32_t num, const halyard_queue_wait *waits,
                             uint32_t num_waits, uint64_t *number, halyard_error *err) {
    queue *self = (queue *)handle;
    device *owner = self->base.owner;
    uint32_t held = 0, status = queue_wait(self, 0, 0, err); /* A queue that failed stays so. */
    commands **found;
    if (status == HALYARD_STATUS_OK) status = wait_for(owner, waits, num_waits, err);
    if (status != HALYARD_STATUS_OK) return status;
    found = (commands **)calloc(num + (size_t)1, sizeof(commands *));
    if (found == NULL) return halyard_fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "no memory for a submit");
    for (; held < num && status == HALYARD_STATUS_OK; held++) {
        found[held] = (commands *)object_find(owner, COMMANDS, ids[held], err);
        if (found[held] == NULL) {
            status = HALYARD_STATUS_INVALID_ARGUMENT;
            break;
        }
    }
    if (status == HALYARD_STATUS_OK) status = mark_submitted(self, found, num, err);
    if (status == HALYARD_STATUS_OK) *number = run_all(self, found, num);
    while (held-- > 0) object_release(&found[held]->base);
    free(found);
    return status;
}

/* The device interface */

static void drop(void *handle) { object_drop((object *)handle); }

const halyard_device_table device_table = {(uint32_t)sizeof(halyard_device_table),
                                           HALYARD_DEVICE_MINOR,
                                           device_close,
                                           device_info,
                                           device_memory,
                                           buffer_create,
                                           drop,
                                           buffer_write,
                                           buffer_read,
                                           queue_create,
                                           drop,
                                           queue_submit,
                                           queue_completed,
                                           queue_wait,
                                           queue_write_step,
                                           queue_reserve_scratch,
                                           encoder_create,
                                           encoder_drop,
                                           encode,
                                           encoder_finish,
                                           drop};
