"""`poise completion`: the scripts by which shells complete `poise`. `complete.py` computes the candidates."""

import click

from poise.cli.main import COMPLETE
from poise.cli.output import TEXT, forms
from poise.cli.render import print_json

BASH = """\
# Completion of poise in bash. Made by `poise completion bash`.
_poise() {
    local IFS=$'\\n' current=${COMP_WORDS[COMP_CWORD]} offer
    COMPREPLY=()
    [[ $current == = ]] && current=
    while read -r offer; do
        case $offer in
            :files) compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -f -- "$current")) ;;
            :commands) COMPREPLY+=($(compgen -c -- "$current")) ;;
            *) COMPREPLY+=("${offer%%$'\\t'*}") ;;
        esac
    done < <("${COMP_WORDS[0]/#\\~/$HOME}" @offers "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null)
}
complete -F _poise poise
"""

ZSH = """\
#compdef poise
# Completion of poise in zsh. Made by `poise completion zsh`.
_poise() {
    local offer program=${~words[1]}
    local -a offers values texts
    offers=("${(@f)$($program @offers "${(@)words[1,CURRENT]}" 2>/dev/null)}")
    for offer in $offers; do
        case $offer in
            :files) _files ;;
            :commands) _command_names ;;
            *) values+=("${offer%%$'\\t'*}"); texts+=("${offer/$'\\t'/  }") ;;
        esac
    done
    (( $#values )) && compadd -l -d texts -a values
}
if [[ $funcstack[1] == _poise ]]; then _poise "$@"; else compdef _poise poise; fi
"""

FISH = """\
# Completion of poise in fish. Made by `poise completion fish`.
function __poise_offers
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for offer in ($words[1] @offers $words "$current" 2>/dev/null)
        switch $offer
            case :files
                __fish_complete_path "$current"
            case :commands
                __fish_complete_command
            case '*'
                echo -- $offer
        end
    end
end
complete -c poise -f -a '(__poise_offers)'
"""

SCRIPTS = {name: text.replace("@offers", COMPLETE) for name, text in (("bash", BASH), ("zsh", ZSH), ("fish", FISH))}


@click.command()
@forms(*TEXT)
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
def completion(shell: str, form: str) -> int:
    """Print the completion script of SHELL for commands, flags, and the names of jobs, tasks, nodes and users.

    For bash: `poise completion bash > ~/.local/share/bash-completion/completions/poise`.
    """
    if form == "json":
        print_json({"shell": shell, "script": SCRIPTS[shell]})
    else:
        click.echo(SCRIPTS[shell], nl=False)
    return 0
