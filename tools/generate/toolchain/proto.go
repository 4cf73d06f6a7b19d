package toolchain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lockstep.internal/tools/generate/tree"
)

// Proto generates messages, clients and handlers of the API in a schemas folder, at their paths
// below gen.
func (t Tools) Proto(ctx context.Context, schemas, prefix string) (tree.Tree, error) {
	dir, err := os.MkdirTemp("", "lockstep-proto-")
	if err != nil {
		return nil, fmt.Errorf("generate the API: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if _, err := t.run(ctx, schemas, "buf", "generate", "-o", dir); err != nil {
		return nil, fmt.Errorf("generate the API: %w", err)
	}
	files := tree.Tree{}
	if err := files.ReadDir(filepath.Join(dir, "gen"), prefix); err != nil {
		return nil, fmt.Errorf("generate the API: %w", err)
	}
	return files, nil
}

// LintProto returns a sentence for each broken rule of buf.yaml.
func (t Tools) LintProto(ctx context.Context, schemas string) ([]string, error) {
	return t.findings(ctx, schemas, "lint")
}

// BreakingProto returns a sentence for each incompatible change since the released API.
func (t Tools) BreakingProto(ctx context.Context, schemas, released string) ([]string, error) {
	return t.findings(ctx, schemas, "breaking", "proto", "--against", released)
}

// findings runs buf, which exits with 100 if it has findings.
func (t Tools) findings(ctx context.Context, dir string, args ...string) ([]string, error) {
	out, err := t.run(ctx, dir, "buf", args...)
	var exit interface{ ExitCode() int }
	if errors.As(err, &exit) && exit.ExitCode() == 100 {
		return strings.Split(strings.TrimSpace(out), "\n"), nil
	}
	return nil, err
}
