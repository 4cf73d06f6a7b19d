package toolchain

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lockstep.internal/tools/generate/catalog"
)

// GoTypes generates the Go types of all event schemas as one file of package events.
func (t Tools) GoTypes(ctx context.Context, c catalog.Catalog) ([]byte, error) {
	dir, err := os.MkdirTemp("", "lockstep-gotypes-")
	if err != nil {
		return nil, fmt.Errorf("generate Go types: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := filepath.Join(dir, "events.go")
	args := []string{
		"--only-models", "-p", "events", "--struct-name-from-title", "--tags", "json", "--minimal-names",
		"--disable-custom-types-for-maps", "--disable-omitzero", "--capitalization", "ID,UID", "-o", out,
	}
	for _, name := range c.Schemas.Names() {
		// The tool makes constants of an enum only; to Go, values that may grow are constants all the same.
		raw := strings.ReplaceAll(string(c.Schemas.Raw(name)), `"`+catalog.KnownValuesKeyword+`":`, `"enum":`)
		if !json.Valid([]byte(raw)) {
			return nil, fmt.Errorf("generate Go types: %s: no JSON is left", name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(raw), 0o600); err != nil {
			return nil, fmt.Errorf("generate Go types: %w", err)
		}
		args = append(args, name)
	}
	if _, err := t.run(ctx, dir, "go-jsonschema", args...); err != nil {
		return nil, fmt.Errorf("generate Go types: %w", err)
	}
	source, err := os.ReadFile(out)
	if err != nil {
		return nil, fmt.Errorf("generate Go types: %w", err)
	}
	return source, nil
}
