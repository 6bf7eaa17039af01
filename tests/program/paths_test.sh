#!/usr/bin/env bash
# What the program touches: only the paths it was given; no file that is not a regular one; no file larger than it may be; and
# nothing that a job file says is run.
. "$(dirname "$0")/../support/check.sh"
cd "$work"
mkdir home tmp cwd res
export HOME=$work/home TMPDIR=$work/tmp
cp -rL "$model" m
echo "The capital of France is" >p.txt

# listing: every file below the work folder but Open MPI's own and this test's, with what would change if it were written to.
listing() { find . -path ./tmp -prune -o -name 'listing.*' -o -name out -o -name err -o -type f -printf '%p %s %T@ %i\n' -o -printf '%p\n' | sort; }
# limited COMMAND...: with little memory and little time, so that a size that is believed or a wait for a writer shows.
# AddressSanitizer takes more addresses than that for itself.
if grep -q __asan_init "$ftmpi"; then addresses=unlimited; else addresses=2000000; fi
limited() { (ulimit -v $addresses; exec timeout -k 1 20 "$@"); }

# --- a run leaves its result and nothing else, in no folder ------------------------------------------------------------------
listing >listing.before
(failed=0; cd cwd && expect_code 0 "$ftmpi" --model ../m --prompts ../p.txt --output ../res/a.h5 --max-tokens 4 && exit "$failed") || bad "a run"
(failed=0; cd cwd && expect_code 0 "$mpirun" -np 2 "$ftmpi" --model ../m --prompts ../p.txt --output ../res/b.h5 --max-tokens 4 && exit "$failed") || bad "a run of two"
for command in "plan --model ../m --hardware 1GiB@10" "inspect --model ../m" "verify ../res/a.h5 ../res/b.h5" help version; do
    # shellcheck disable=SC2086
    (failed=0; cd cwd && expect_code 0 "$ftmpi" $command && exit "$failed") || bad "$command"
done
listing >listing.after
same "$(diff listing.before listing.after | grep '^[<>]' | awk '{print $1 $2}' | sort | tr '\n' ' ')" ">./res/a.h5 >./res/b.h5 " "files that changed"
same "$(find tmp -type f | wc -l)" 0 "files left in the folder for temporary files"
# The default name lies in the current folder.
(cd cwd && "$ftmpi" --model ../m --prompt And --max-tokens 1 >/dev/null 2>&1)
same "$(cd cwd && echo ftmpi-*.h5 | wc -w)" 1 "results in the current folder"
rm -f cwd/ftmpi-*.h5

# --- what a result file holds, and what it is called, is printed as text ----------------------------------------------------------
mkdir odd && (
    failed=0
    cd odd
    name=$'m\x1b[31m\nequal: 9 requests'
    ln -s ../m "$name"
    expect_code 0 "$ftmpi" --model "$name" --prompts ../p.txt --output $'b\x1b[2J.h5' --max-tokens 4
    expect_code 0 "$ftmpi" verify ../res/a.h5 $'b\x1b[2J.h5'
    says 'm\x1b[31m\x0aequal: 9 requests in the second'
    same "$(grep -c ^equal "$work/out")" 1 "lines that begin with equal"
    "$ftmpi" --model "$name" --prompts ../p.txt --output $'c\x1b[2J.h5' >"$work/out" 2>"$work/err" </dev/null &
    for _ in $(seq 1500); do [ -e $'c\x1b[2J.h5.journal' ] && break; sleep 0.02; done
    kill -9 $!
    wait $! 2>/dev/null
    "$ftmpi" recover $'c\x1b[2J.h5' >"$work/out.2" 2>"$work/err.2"
    same "$(cat "$work"/out "$work"/out.2 "$work"/err.2 | grep -c $'\x1b')" 0 "lines with an escape character"
    exit "$failed"
) || bad "odd names"
rm -rf odd out.2 err.2

# --- the same by the system calls: what is opened, what is changed, what is started ---------------------------------------------
if command -v strace >/dev/null && strace -f -e trace=execve -o trace true 2>/dev/null; then
    mkdir decoy && cp "$root/data/tiny-nvfp4/config.json" decoy
    strace -f -y -e trace=open,openat,openat2,creat,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,link,linkat,symlink,symlinkat,chmod,fchmodat,truncate,execve,connect,sendto \
        -o trace "$ftmpi" --model m --chat --prompts p.txt --output res/traced.h5 --max-tokens 4 >out.txt 2>err
    same $? 0 "exit code under strace"
    same "$(grep -c 'execve(' trace)" 1 "programs started"
    same "$(grep -E 'connect\(|sendto\(' trace | grep 'sin_addr\|sin6_addr' | grep -vE '127\.0\.0\.1|"::1"' | head -n 3)" "" "connections"
    # Read: system files, the checkpoint, the prompts, the result. (A name that does not exist is no reading.)
    grep -E 'open(at|at2)?\(' trace | grep -v ' = -1 ' | grep -oE ' = [0-9]+<[^>]*>' | sed 's/^ = [0-9]*<//; s/>$//; s/ (deleted)$//' | sort -u >opened
    same "$(grep -vE "^(/usr|/lib|/lib64|/etc|/proc|/sys|/dev|/opt|/run)(/|$)|^$work/tmp/|^(pipe|socket|anon_inode):" opened |
        sed "s|^$work/||" | grep -vxE 'm|m/[a-zA-Z0-9_.-]*|p\.txt|res|res/traced\.h5(\.part|\.journal)?|/|/tmp|\.' | grep -v '^/dev' | tr '\n' ' ')" "" "files opened that were not given"
    grep -q "^$work/m/tokenizer.json" opened && ok || bad "the trace does not show what is known to be opened"
    # Changed: the result, its journal, its part.
    same "$(grep -E 'O_(WRONLY|RDWR|CREAT|TRUNC)|^[0-9]+ +(creat|unlink|rename|mkdir|link|symlink|chmod|truncate|fchmod)' trace | grep -v ' = -1 ' |
        grep -oE '"[^"]*"' | tr -d '"' | grep -vE "^(/dev|/proc|/sys|$work/tmp)/|^res/traced\.h5(\.part|\.journal)?$" | sort -u | tr '\n' ' ')" "" "files changed that were not given"
else
    echo "skipped: the system calls (strace is not installed or not allowed here)"
fi

# --- a job file sets values and runs nothing ------------------------------------------------------------------------------------
# shellcheck disable=SC2016
printf '%s\n' 'model = m' 'prompt = $(touch ran) `touch ran`; touch ran | touch ran && touch ran' 'prompt = {{ "%s" }} ${HOME} ~ * \n' \
    'output = res/job $(touch ran).h5' 'max-tokens = 1' >job.ini
expect_code 0 "$ftmpi" --job job.ini
absent ran
# shellcheck disable=SC2016
present 'res/job $(touch ran).h5'
for line in 'job = other.ini' 'include = other.ini' '!touch ran' 'model = m
exec = touch ran' '[section]' 'model m'; do
    printf '%s\n' "$line" >bad.ini
    expect_code 2 "$ftmpi" --job bad.ini --prompt And --output res/x.h5
    says "bad.ini:"
done
absent ran
printf '\xef\xbb\xbfmodel = m\nprompt = And\nmax-tokens = 1\noutput = res/mark.h5\n' >job.ini
expect_code 0 "$ftmpi" --job job.ini
present res/mark.h5
printf 'model = m\n' | iconv -f UTF-8 -t UTF-16 >job.ini 2>/dev/null || printf '\xff\xfem\0' >job.ini
expect_code 2 "$ftmpi" --job job.ini
says "UTF-16"

# --- pipes, devices and folders in place of files: refused at once, whoever would write into them never comes --------------------
odd() { # odd CODE WORDS COMMAND...
    expect_code "$1" limited "${@:3}"
    says "$2"
    says_once "ftmpi: error"
}
for kind in fifo device folder; do
    make() { # make PATH: puts one of this kind there
        rm -rf "$1"
        case $kind in fifo) mkfifo "$1" ;; device) ln -s /dev/zero "$1" ;; folder) mkdir "$1" ;; esac
    }
    make odd
    odd 3 "odd" "$ftmpi" --model m --prompts odd --output res/x.h5
    odd 2 "odd" "$ftmpi" --job odd
    odd 2 "odd" "$ftmpi" --model m --prompt And --output odd
    odd 3 "odd" "$ftmpi" verify odd res/a.h5
    odd 3 "odd" "$ftmpi" verify res/a.h5 odd
    [ $kind = folder ] || odd 3 "odd" "$ftmpi" --model odd --prompt And --output res/x.h5
    [ $kind = folder ] || odd 3 "odd" "$ftmpi" inspect odd
    make res/y.h5.journal
    case $kind in
        device) odd 1 "y.h5.journal" "$ftmpi" recover res/y.h5 ;;  # a link is not followed there
        *) odd 1 "y.h5.journal" "$ftmpi" recover res/y.h5 ;;
    esac
    odd 1 "y.h5.journal" "$ftmpi" --model m --prompt And --output res/y.h5
    rm -rf res/y.h5.journal
    make res/y.h5.part
    odd 2 "y.h5.part" "$ftmpi" --model m --prompt And --output res/y.h5
    rm -rf res/y.h5.part
    for file in config.json generation_config.json hf_quant_config.json model.safetensors.index.json model-00002-of-00002.safetensors \
        tokenizer.json chat_template.jinja; do
        [ -e m/$file ] || continue
        mv m/$file kept
        make m/$file
        odd 3 "$file" "$ftmpi" --model m --chat --prompt And --output res/x.h5
        rm -rf m/$file
        mv kept m/$file
    done
done
# What a shell pipes in is no file either; and standard input that is one may be named.
echo And | limited "$ftmpi" --model m --prompts /dev/stdin --output res/x.h5 >out.txt 2>err
same $? 3 "exit code for prompts through a pipe"
says "is a named pipe, not a regular file"
limited "$ftmpi" --model m --prompts /dev/stdin --output res/x.h5 --max-tokens 1 <p.txt >out.txt 2>err
same $? 0 "exit code for prompts from standard input"
rm -f res/x.h5

# --- sizes are looked at before memory is taken (files of this size take no room on the disk) ------------------------------------
large() { rm -f "$1"; truncate -s 900G "$1"; }
if large huge 2>/dev/null; then
    odd 3 "huge" "$ftmpi" --model m --prompts huge --output res/x.h5
    odd 2 "huge" "$ftmpi" --job huge
    odd 3 "huge" "$ftmpi" verify huge res/a.h5
    printf '\x89HDF\r\n\x1a\n' | dd of=huge conv=notrunc 2>/dev/null
    odd 3 "huge" "$ftmpi" verify huge res/a.h5
    odd 2 "huge" "$ftmpi" --model m --prompt And --output huge --overwrite
    for file in config.json generation_config.json hf_quant_config.json model.safetensors.index.json model-00002-of-00002.safetensors \
        tokenizer.json chat_template.jinja; do
        [ -e m/$file ] || continue
        mv m/$file kept
        large m/$file
        # A shard may be large, and is mapped; what its header says of it is wrong.
        case $file in *.safetensors) few="timeout 20" ;; *) few=limited ;; esac
        # shellcheck disable=SC2086
        expect_code 3 $few "$ftmpi" --model m --chat --prompt And --output res/x.h5
        says "$file"
        rm -f m/$file
        mv kept m/$file
    done
else
    echo "skipped: files of 900 GB (this file system has none)"
fi
absent res/x.h5

# --- nothing is written into the checkpoint's folder, and only results are replaced ------------------------------------------------
listing >listing.before
mkdir below && ln -s ../m below/link
for name in m/x.h5 m/config.json m/model.h5 m/../m/y.h5 below/link/x.h5; do
    expect_code 2 "$ftmpi" --model m --prompt And --output $name --overwrite
done
says "in the folder of the checkpoint"
expect_code 2 "$ftmpi" --model below/link --prompt And --output m/x.h5
(failed=0; cd m && expect_code 2 "$ftmpi" --model . --prompt And && says "choose an --output elsewhere" && exit "$failed") || bad "the checkpoint's folder as current folder"
rm -r below
listing >listing.after
if diff listing.before listing.after; then ok; else bad "refused outputs left something"; fi
finish
