// Package toolchain runs the code generators at their pinned versions.
//
// The module tools/generate/pinned names the versions. The programs are in the bin folder of the
// repository, which is not committed. [Open] compares the versions and builds the programs if one
// is missing or has another version. The first build takes minutes and needs the module proxy;
// everything else works offline.
package toolchain

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/modfile"
)

// Tools are the generators, ready to run.
type Tools struct {
	bin string
}

// Open returns the tools in bin. It builds them if necessary and reports long steps on progress.
func Open(ctx context.Context, root, bin string, progress io.Writer) (Tools, error) {
	pinned := filepath.Join(root, "tools", "generate", "pinned")
	pinnedVersions, err := pins(filepath.Join(pinned, "go.mod"))
	if err != nil {
		return Tools{}, err
	}
	stale := ""
	for command, version := range pinnedVersions {
		if built(filepath.Join(bin, programName(command)), command) != version {
			stale = command + " " + version
		}
	}
	if stale == "" {
		return Tools{bin: bin}, nil
	}
	_, _ = fmt.Fprintf(progress,
		"building the code generators (%s is not in %s); the first time this takes some minutes\n", stale, bin)
	cmd := exec.CommandContext(ctx, "go", "install", "tool")
	cmd.Dir = pinned
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOBIN="+bin)
	cmd.Stdout, cmd.Stderr = progress, progress
	if err := cmd.Run(); err != nil {
		return Tools{}, fmt.Errorf("install the code generators of %s: %w", pinned, err)
	}
	return Tools{bin: bin}, nil
}

// pins returns the module version of each tool by package.
func pins(file string) (map[string]string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the pinned tools: %w", err)
	}
	mod, err := modfile.Parse(file, raw, nil)
	if err != nil {
		return nil, fmt.Errorf("read the pinned tools: %w", err)
	}
	pinnedVersions := map[string]string{}
	for _, tool := range mod.Tool {
		longest := ""
		for _, require := range mod.Require {
			inside := tool.Path == require.Mod.Path || strings.HasPrefix(tool.Path, require.Mod.Path+"/")
			if inside && len(require.Mod.Path) > len(longest) {
				longest, pinnedVersions[tool.Path] = require.Mod.Path, require.Mod.Version
			}
		}
		if longest == "" {
			return nil, fmt.Errorf("%s: tool %s: no required module holds it", file, tool.Path)
		}
	}
	return pinnedVersions, nil
}

var majorSuffix = regexp.MustCompile(`^v[0-9]+$`)

func programName(command string) string {
	if name := path.Base(command); !majorSuffix.MatchString(name) {
		return name
	}
	return path.Base(path.Dir(command))
}

// built returns the module version of a program, or "" if it is not a build of the command.
func built(program, command string) string {
	info, err := buildinfo.ReadFile(program)
	if err != nil || info.Path != command {
		return ""
	}
	return info.Main.Version
}

// run runs a tool in a folder and returns its output. The error also has the output.
func (t Tools) run(ctx context.Context, dir, program string, args ...string) (string, error) {
	//nolint:gosec // A pinned tool with arguments of ours.
	cmd := exec.CommandContext(ctx, filepath.Join(t.bin, program), args...)
	cmd.Dir = dir
	// buf.gen.yaml names the plugins without a path, so PATH must contain bin.
	cmd.Env = append(os.Environ(), "PATH="+t.bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s",
			program, strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}
