package sshserver

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// errNoShell names what a person can do about it.
var errNoShell = errors.New("the image of this workspace has no shell: choose an image with /bin/sh or bash")

// Shell returns the path of the shell: that of the variable SHELL, of the user's line in /etc/passwd, or the first of
// bash and sh that exists.
func Shell() (string, error) {
	own := readAccount(passwd, os.Getuid()).shell
	for _, candidate := range []string{os.Getenv("SHELL"), own, "bash", "/bin/bash", "/bin/sh", "sh"} {
		if candidate == "" || noLogin(candidate) {
			continue
		}
		if path, err := exec.LookPath(candidate); err == nil {
			return path, nil
		}
	}
	return "", errNoShell
}

// UserName is the name of the user in /etc/passwd; empty if the image has no line for the user.
func UserName() string { return readAccount(passwd, os.Getuid()).name }

// keepPath replaces a login shell by another one, which is not a login shell, when it has read its profile. Arguments
// are PATH of the container and the shell. Profiles of distributions set PATH anew: programs of the image that are in
// other folders, such as /usr/local/go/bin, would not be found.
const keepPath = `case ":$PATH:" in *":$1:"*) ;; *) PATH=$1:$PATH; export PATH ;; esac; exec "$2"`

// loginShell are the arguments of a login shell. It finds programs in the folders of path, and then in those that its
// profile adds.
func loginShell(shell, path string) []string {
	name := baseName(shell)
	switch name {
	case "sh", "bash", "dash", "ash", "zsh", "ksh", "mksh":
		if path != "" {
			return []string{"-" + name, "-c", keepPath, name, path, shell}
		}
	}
	return []string{"-" + name}
}

// noLogin reports whether the program ends at once: the shell of accounts that are not for people.
func noLogin(path string) bool {
	name := baseName(path)
	return name == "nologin" || name == "false"
}

func baseName(path string) string { return filepath.Base(path) }

// passwd is the file with the accounts of the image.
const passwd = "/etc/passwd"

// account is a user of the image.
type account struct{ name, shell string }

// readAccount returns the account of a user, or an empty one.
func readAccount(file string, uid int) account {
	users, err := os.Open(file)
	if err != nil {
		return account{} // an image without the file
	}
	defer users.Close() //nolint:errcheck // it was only read
	lines := bufio.NewScanner(users)
	for lines.Scan() {
		// name:password:uid:gid:text:home:shell
		fields := strings.Split(lines.Text(), ":")
		if len(fields) == 7 && fields[2] == strconv.Itoa(uid) {
			return account{name: fields[0], shell: fields[6]}
		}
	}
	return account{}
}
