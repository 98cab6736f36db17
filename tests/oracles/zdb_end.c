/*
 * OpenZFS's zdb ends when it is done.
 *
 * What it has to say is said, and its exit code known, when it begins to take down what it made; that is done
 * with a processor burnt for up to six seconds (what it read ahead has to become old, and every size of buffer
 * is compared with every other). Preloaded, this takes its place. setup.sh builds it and says where it is in
 * ZDB_PRELOAD.
 */
void kernel_fini(void)
{
}
