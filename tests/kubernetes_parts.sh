#!/bin/sh
# Builds a real Kubernetes for the tests from Debian's source package, in a folder: kube-apiserver, kube-scheduler,
# kube-controller-manager and kubemark. It needs a C compiler, no root, and minutes; what is there is not built again.
#
# Debian has these programs in no binary package. Its Go is newer than this Kubernetes: reflect2 1.0.1, which is in the
# source, crashes with it, so Debian's reflect2 1.0.2 takes its place.
set -eu
folder=$(mkdir -p "$1" && cd "$1" && pwd)
programs=${2:-"kube-apiserver kube-controller-manager kube-scheduler kubemark"}
cd "$folder"
missing=""
for program in $programs; do test -x "bin/$program" || missing="$missing $program"; done
test -n "$missing" || { echo "all are there: $folder/bin"; exit 0; }

own=$(id -un)
mkdir -p apt/lists/partial apt/cache/archives/partial sources packages root bin
key=/usr/share/keyrings/debian-archive-keyring.gpg
cat > apt/sources.list <<LIST
deb-src [signed-by=$key] http://deb.debian.org/debian bookworm main
deb-src [signed-by=$key] http://deb.debian.org/debian-security bookworm-security main
LIST
private="-o Dir::Etc::sourcelist=$folder/apt/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$folder/apt/lists \
-o Dir::Cache=$folder/apt/cache -o APT::Sandbox::User=$own"
if ! ls sources/kubernetes_*.orig.tar.gz > /dev/null 2>&1; then
  apt-get $private -qq update
  (cd sources && apt-get $private -qq source --download-only kubernetes)
fi
for package in golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev rsync libpopt0 libxxhash0; do
  test -e "packages/.$package" && continue
  (cd packages && { ls "${package}"_*.deb > /dev/null 2>&1 || apt-get -qq -o APT::Sandbox::User="$own" download "$package"; })
  dpkg -x packages/"${package}"_*.deb root
  touch "packages/.$package"
done

# as `dpkg-source` would unpack it, in the place where Go looks for it
tree=$folder/gopath/src/k8s.io/kubernetes
if ! test -e "$tree/.unpacked"; then
  rm -rf "$tree" && mkdir -p "$tree"
  tar -xf sources/kubernetes_*.orig.tar.gz -C "$tree" --strip-components 1
  tar -xf sources/kubernetes_*.debian.tar.xz -C "$tree"
  grep -v '^ *#' "$tree/debian/patches/series" | while read -r patch rest; do
    test -z "$patch" || patch -s -p1 -d "$tree" < "$tree/debian/patches/$patch"
  done
  reflect2=root/usr/share/gocode/src/github.com/modern-go/reflect2
  rm -rf "$tree/vendor/github.com/modern-go/reflect2"
  cp -r "$reflect2" "$tree/vendor/github.com/modern-go/reflect2"
  touch "$tree/.unpacked"
fi

export GOROOT="$folder/root/usr/lib/go-1.19" GOPATH="$folder/gopath" GOCACHE="$folder/cache" GO111MODULE=off GOFLAGS=
export PATH="$GOROOT/bin:$folder/root/usr/bin:$PATH" LD_LIBRARY_PATH="$folder/root/usr/lib/x86_64-linux-gnu"
export KUBE_GIT_VERSION_FILE="$folder/version" KUBE_BUILD_PLATFORMS=linux/amd64
cat > version <<VERSION
KUBE_GIT_COMMIT=''
KUBE_GIT_TREE_STATE='archive'
KUBE_GIT_VERSION='v1.20.2'
KUBE_GIT_MAJOR='1'
KUBE_GIT_MINOR='20'
VERSION
cd "$tree"
for program in $missing; do
  make "WHAT=cmd/$program" GOFLAGS="-p=${JOBS:-2}"
  cp "_output/bin/$program" "$folder/bin/" 2> /dev/null || cp "_output/local/bin/linux/amd64/$program" "$folder/bin/"
done
ls -l "$folder/bin"
