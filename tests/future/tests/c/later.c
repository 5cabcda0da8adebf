/* A platform of a later contract, in C: tables with functions more, and a file whose manifests this host does not all
 * know. Its work is that of the smallest platform. */
#define BROKEN_NO_MANIFEST
#define LARGER_TABLE
#include "../../../../runtime/plugin-host/tests/c/plugin.c"

HALYARD_MANIFEST(
    "{\"manifest\":2,\"plugins\":[{\"name\":\"x\"}],\"abi\":[9,9]}\0\0"
    "{\"manifest\":1,\"kind\":\"kv-connector\",\"name\":\"minimal\",\"version\":\"9\",\"abi\":\"0.9\",\"entry\":\"x\"}\n"
    "{\"manifest\":1,\"kind\":\"platform\",\"name\":\"minimal\",\"version\":\"9.0\",\"abi\":\"0.9\","
    "\"entry\":\"minimal_entry\",\"interfaces\":{\"platform\":\"0.9\"},\"signed\":[1,2],\"priority\":3}");
