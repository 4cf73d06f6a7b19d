package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/mod/semver"

	"lockstep.internal/tools/generate/tree"
)

// release copies the current schemas to the released ones, and the examples to the golden events of
// the version.
func (p project) release(ctx context.Context, version string, out io.Writer) error {
	last, err := p.lastRelease()
	if err != nil {
		return err
	}
	if err := checkVersion(version, last); err != nil {
		return err
	}
	if err := p.check(ctx); err != nil {
		return fmt.Errorf("release %s: the check fails:\n%w", version, err)
	}
	files := tree.Tree{releasedVersion: []byte(version + "\n")}
	for from, to := range map[string]string{
		eventsFolder:    releasedEvents,
		admissionFolder: releasedAdmission,
		"schemas/proto": releasedProto,
		examples:        goldenEvents + "/" + version,
	} {
		if err := files.ReadDir(p.path(from), to); err != nil {
			return fmt.Errorf("release %s: %w", version, err)
		}
	}
	if files[releasedErrors], err = os.ReadFile(p.path(errcodeIn)); err != nil {
		return fmt.Errorf("release %s: %w", version, err)
	}
	touched, err := files.Write(p.root, []string{releasedEvents, releasedAdmission, releasedProto})
	if err != nil {
		return fmt.Errorf("release %s: %w", version, err)
	}
	for _, path := range touched {
		_, _ = fmt.Fprintln(out, path)
	}
	return nil
}

// lastRelease returns the last released version, or "" before the first one.
func (p project) lastRelease() (string, error) {
	raw, err := os.ReadFile(p.path(releasedVersion))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the last release: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

func checkVersion(version, last string) error {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("release %q: a version is written as v0.2.0", version)
	}
	if last != "" && semver.Compare(version, last) <= 0 {
		return fmt.Errorf("release %s: must be higher than the last one, %s", version, last)
	}
	return nil
}
