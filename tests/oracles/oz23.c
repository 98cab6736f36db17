/* oz23: lets OpenZFS 2.3's engine in user space begin, go on with or finish a RAID-Z expansion of a pool on files.
 * build: gcc -O1 -w oz23.c -o oz23 -L/opt/openzfs-2.3/lib/x86_64-linux-gnu -l:libzpool.so.6 -l:libnvpair.so.3 -lpthread
 * run: LD_LIBRARY_PATH=/opt/openzfs-2.3/lib/x86_64-linux-gnu ./oz23 POOL SECONDS PAUSE MAXBYTES NEWFILE|- FILE...
 * PAUSE: raidz_expand_pause_point; with NEWFILE the first top-level vdev is expanded by it; negative SECONDS: killed, not exported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <unistd.h>
#include <fcntl.h>
#include <pthread.h>
typedef struct nvlist nvlist_t; typedef struct spa spa_t;
extern void kernel_init(int); extern int spa_import(char*,nvlist_t*,nvlist_t*,uint64_t);
extern int spa_export(const char*,nvlist_t**,int,int); extern int spa_open(const char*,spa_t**,const void*);
extern void spa_close(spa_t*,const void*); extern int spa_vdev_attach(spa_t*,uint64_t,nvlist_t*,int,int);
extern int spa_raidz_expand_get_stats(spa_t*,void*); extern void*spa_get_dsl(spa_t*); extern void txg_wait_synced(void*,uint64_t);
extern unsigned int raidz_expand_pause_point; extern unsigned long raidz_expand_max_reflow_bytes;
extern int nvlist_unpack(char*,size_t,nvlist_t**,int); extern nvlist_t*fnvlist_alloc(void);
extern void fnvlist_add_string(nvlist_t*,const char*,const char*); extern void fnvlist_add_uint64(nvlist_t*,const char*,uint64_t);
extern void fnvlist_add_nvlist(nvlist_t*,const char*,nvlist_t*); extern void fnvlist_add_nvlist_array(nvlist_t*,const char*,nvlist_t*const*,unsigned);
extern uint64_t fnvlist_lookup_uint64(nvlist_t*,const char*); extern nvlist_t*fnvlist_lookup_nvlist(nvlist_t*,const char*);
extern int nvlist_lookup_nvlist_array(nvlist_t*,const char*,nvlist_t***,unsigned*); extern int nvlist_add_string(nvlist_t*,const char*,const char*);
extern void libspl_set_assert_ok(int); extern int nvlist_lookup_uint64(nvlist_t*,const char*,uint64_t*);
struct stats{uint64_t state,vdev,start,end,to,done,waits;};
extern char*spa_config_path;extern unsigned zfs_txg_timeout;
extern void spa_config_enter(spa_t*,int,const void*,int);extern void spa_config_exit(spa_t*,int,const void*);
static char*pool;static uint64_t guid;static char*file;static int attached=-1;
static void*attach(void*p){spa_t*spa=p;nvlist_t*l=fnvlist_alloc(),*r=fnvlist_alloc();
  fnvlist_add_string(l,"type","file");fnvlist_add_string(l,"path",file);fnvlist_add_uint64(l,"is_log",0);
  fnvlist_add_string(r,"type","root");fnvlist_add_nvlist_array(r,"children",&l,1);
  attached=spa_vdev_attach(spa,guid,r,0,0);printf("attach: %d\n",attached);fflush(stdout);return 0;}
static nvlist_t*label(const char*path){char*b=malloc(262144);int fd=open(path,O_RDONLY);nvlist_t*best=0;uint64_t txg=0;
  off_t size=lseek(fd,0,SEEK_END)&~262143ULL;for(int i=0;i<4;i++){off_t at=i<2?i*262144:size-(4-i)*262144;pread(fd,b,262144,at);nvlist_t*n;
    if(nvlist_unpack(b+16384,114688-40,&n,0)==0){uint64_t t=0;nvlist_lookup_uint64(n,"txg",&t);if(!best||t>txg){best=n;txg=t;}}}return best;}
int main(int c,char**v){pool=v[1];int secs=atoi(v[2]);raidz_expand_pause_point=atoi(v[3]);raidz_expand_max_reflow_bytes=strtoul(v[4],0,0);file=v[5];
  if(!strcmp(file,"-"))file=0;
  nvlist_t*l=0;uint64_t best=0;for(int i=6;i<c;i++){nvlist_t*n=label(v[i]);uint64_t t=0;if(n&&!nvlist_lookup_uint64(n,"txg",&t)&&(!l||t>best)){l=n;best=t;}}
  nvlist_t*top=fnvlist_lookup_nvlist(l,"vdev_tree");guid=fnvlist_lookup_uint64(top,"guid");
  nvlist_t**kids;unsigned n;nvlist_lookup_nvlist_array(top,"children",&kids,&n);
  for(unsigned k=0;k<n;k++){uint64_t g=fnvlist_lookup_uint64(kids[k],"guid");for(int i=6;i<c;i++){nvlist_t*own=label(v[i]);uint64_t o;if(own&&!nvlist_lookup_uint64(own,"guid",&o)&&o==g)nvlist_add_string(kids[k],"path",v[i]);}}
  nvlist_t*root=fnvlist_alloc(),*cfg=fnvlist_alloc();
  fnvlist_add_string(root,"type","root");fnvlist_add_uint64(root,"id",0);fnvlist_add_uint64(root,"guid",fnvlist_lookup_uint64(l,"pool_guid"));
  fnvlist_add_nvlist_array(root,"children",&top,1);
  fnvlist_add_uint64(cfg,"version",5000);fnvlist_add_string(cfg,"name",pool);fnvlist_add_uint64(cfg,"state",1);fnvlist_add_uint64(cfg,"txg",best);
  fnvlist_add_uint64(cfg,"pool_guid",fnvlist_lookup_uint64(l,"pool_guid"));fnvlist_add_uint64(cfg,"vdev_children",1);fnvlist_add_nvlist(cfg,"vdev_tree",root);
  zfs_txg_timeout=1;spa_config_path="/tmp/oz23.cache";unlink(spa_config_path);kernel_init(3);int e=spa_import(pool,cfg,0,0);printf("import: %d\n",e);fflush(stdout);if(e)return 1;
  spa_t*spa;e=spa_open(pool,&spa,"oz");if(e){printf("open: %d\n",e);return 1;}
  pthread_t t;if(file)pthread_create(&t,0,attach,spa);
  struct stats s={0};for(int i=0;i<abs(secs)*10;i++){usleep(100000);spa_config_enter(spa,1,"oz",1);int r=spa_raidz_expand_get_stats(spa,&s);spa_config_exit(spa,1,"oz");
    if(i%10==0||r==0&&s.state==2){printf("stats %d: state %lu done %lu of %lu waits %lu\n",r,s.state,s.done,s.to,s.waits);fflush(stdout);}
    if(r==0&&s.state==2&&secs>0&&(!file||attached>=0))break;}
  if(secs<0){printf("killed\n");fflush(stdout);_exit(9);}
  txg_wait_synced(spa_get_dsl(spa),0);spa_close(spa,"oz");e=spa_export(pool,0,0,0);printf("export: %d\n",e);fflush(stdout);_exit(e!=0);}
