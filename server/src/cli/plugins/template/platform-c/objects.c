/* Ids. One table a device: an id is a slot and how often the slot was given out, so a dead id never names another
 * object. References are counted under the device's lock. */
#include "platform.h"

static uint32_t grow(device *owner) {
    uint32_t count = owner->num_slots == 0 ? 64 : 2 * owner->num_slots;
    slot *slots = (slot *)realloc(owner->slots, count * sizeof(slot));
    if (slots == NULL) return HALYARD_STATUS_OUT_OF_MEMORY;
    for (uint32_t i = owner->num_slots; i < count; i++) {
        slots[i].held = NULL;
        slots[i].generation = 0;
        slots[i].next_free = i + 1;
    }
    owner->slots = slots;
    owner->num_slots = count; /* `first_free` was the old count: the first of the new ones. */
    return HALYARD_STATUS_OK;
}

uint32_t object_add(object *self, device *owner, object_kind kind, void (*destroy)(object *self), halyard_error *err) {
    uint32_t status = HALYARD_STATUS_OK;
    self->owner = owner;
    self->destroy = destroy;
    self->kind = kind;
    self->references = 1;
    pthread_mutex_lock(&owner->lock);
    if (owner->first_free == owner->num_slots) status = grow(owner);
    if (status == HALYARD_STATUS_OK) {
        uint32_t index = owner->first_free;
        slot *place = &owner->slots[index];
        owner->first_free = place->next_free;
        place->held = self;
        place->generation++;
        self->id = (uint64_t)place->generation << 32 | (index + 1);
    }
    pthread_mutex_unlock(&owner->lock);
    return status == HALYARD_STATUS_OK ? status : halyard_fail(err, status, "no memory for one more object");
}

object *object_find(device *owner, object_kind kind, uint64_t id, halyard_error *err) {
    static const char *const names[] = {"buffer", "queue", "command buffer", "op"};
    uint32_t index = (uint32_t)id - 1; /* Of id 0 the largest number. */
    object *found = NULL;
    pthread_mutex_lock(&owner->lock);
    if (index < owner->num_slots) found = owner->slots[index].held;
    if (found != NULL && (found->id != id || found->kind != kind)) found = NULL;
    if (found != NULL) found->references++;
    pthread_mutex_unlock(&owner->lock);
    if (found == NULL) {
        halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT,
                     "%s id %llu is not alive: it was never given out, or its object was dropped", names[kind],
                     (unsigned long long)id);
    }
    return found;
}

void object_release(object *self) {
    device *owner = self->owner;
    uint32_t left;
    pthread_mutex_lock(&owner->lock);
    left = --self->references;
    pthread_mutex_unlock(&owner->lock);
    if (left == 0) self->destroy(self);
}

void object_drop(object *self) {
    device *owner = self->owner;
    pthread_mutex_lock(&owner->lock);
    uint32_t index = (uint32_t)self->id - 1;
    owner->slots[index].held = NULL;
    owner->slots[index].next_free = owner->first_free;
    owner->first_free = index;
    self->id = 0;
    pthread_mutex_unlock(&owner->lock);
    object_release(self);
}
