package sshserver

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// errNoShell names what a person can do about it.
var errNoShell = errors.New("the image of this workspace has no shell: choose an image with /bin/sh or bash")

// Shell returns the path of the shell: that of the variable SHELL, of the user's line in /etc/passwd, or the first of
// bash and sh that exists.
func Shell() (string, error) {
	own := []string{os.Getenv("SHELL"), passwdShell("/etc/passwd", os.Getuid())}
	candidates := slices.Concat(own, []string{"bash", "/bin/bash", "/bin/sh", "sh"})
	for _, candidate := range candidates {
		if candidate == "" || noLogin(candidate) {
			continue
		}
		if path, err := exec.LookPath(candidate); err == nil {
			return path, nil
		}
	}
	return "", errNoShell
}

// noLogin reports whether the program ends at once: the shell of accounts that are not for people.
func noLogin(path string) bool {
	name := baseName(path)
	return name == "nologin" || name == "false"
}

func baseName(path string) string { return filepath.Base(path) }

// passwdShell returns the shell of a user, or nothing.
func passwdShell(file string, uid int) string {
	users, err := os.Open(file)
	if err != nil {
		return "" // an image without the file
	}
	defer users.Close() //nolint:errcheck // it was only read
	lines := bufio.NewScanner(users)
	for lines.Scan() {
		// name:password:uid:gid:text:home:shell
		fields := strings.Split(lines.Text(), ":")
		if len(fields) == 7 && fields[2] == strconv.Itoa(uid) {
			return fields[6]
		}
	}
	return ""
}
