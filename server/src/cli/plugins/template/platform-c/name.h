/* What the platform is called: in its manifest, for --platform, and in the symbol of its entry. */
#ifndef NAME_H
#define NAME_H

#define PLATFORM_NAME "plain"
#define PLATFORM_VERSION "0.1.0"
#define PLATFORM_ENTRY plain_entry

#endif
