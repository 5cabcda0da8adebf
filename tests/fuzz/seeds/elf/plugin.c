/* The seed of the target `elf`: a small library with a manifest section. Made by:
   cc -shared -fPIC -nostdlib -Os -s -Wl,-z,noseparate-code -o plugin.so plugin.c */
__attribute__((section(".halyard.manifest"), used)) static const char manifest[] =
    "{\"manifest\":1,\"kind\":\"platform\",\"name\":\"seed\",\"version\":\"0.1.0\",\"abi\":\"0.1\","
    "\"entry\":\"halyard_entry\",\"priority\":0,\"about\":\"a seed\",\"cpu_features\":\"\"}";
int halyard_entry(void) { return 1; }
