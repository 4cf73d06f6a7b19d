package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"lockstep.internal/tools/generate/asyncapi"
	"lockstep.internal/tools/generate/catalog"
	"lockstep.internal/tools/generate/errcodes"
	"lockstep.internal/tools/generate/gotypes"
	"lockstep.internal/tools/generate/reference"
	"lockstep.internal/tools/generate/toolchain"
	"lockstep.internal/tools/generate/tree"
)

// Paths below the repository's root.
const (
	schemasFolder = "schemas"
	eventsFolder  = "schemas/events"
	// admissionFolder has the contract with admission controllers, from which nothing is generated.
	admissionFolder = "schemas/admission"
	protoOut        = "schemas/gen"
	goTypesOut      = "schemas/gen/events/events.go"
	registryOut     = "schemas/gen/events/registry.go"
	decodersOut     = "schemas/gen/events/decoders.go"
	errcodeIn       = "schemas/errors.json"
	errcodeOut      = "schemas/gen/errcode/errcode.go"
	examples        = "schemas/examples"
	asyncapiOut     = "schemas/asyncapi.yaml"
	referenceOut    = "docs/reference/events.md"
)

// ownedFolders hold nothing but generated files.
func ownedFolders() []string {
	return []string{"schemas/gen/errcode", "schemas/gen/lockstep"}
}

// project is one repository and the tools to generate in it.
type project struct {
	root  string
	tools toolchain.Tools
}

func open(ctx context.Context, root string, progress io.Writer) (project, error) {
	tools, err := toolchain.Open(ctx, root, filepath.Join(root, "bin"), progress)
	if err != nil {
		return project{}, err
	}
	return project{root: root, tools: tools}, nil
}

func (p project) path(slashed string) string {
	return filepath.Join(p.root, filepath.FromSlash(slashed))
}

func (p project) catalog() (catalog.Catalog, error) {
	c, err := catalog.Load(os.DirFS(p.path(eventsFolder)))
	if err != nil {
		return catalog.Catalog{}, fmt.Errorf("%s breaks rules of schemas/README.md:\n%w", eventsFolder, err)
	}
	return c, nil
}

// render returns all generated files.
func (p project) render(ctx context.Context, c catalog.Catalog) (tree.Tree, error) {
	files, err := p.tools.Proto(ctx, p.path(schemasFolder), protoOut)
	if err != nil {
		return nil, err
	}
	types, err := gotypes.NewModel(c)
	if err != nil {
		return nil, fmt.Errorf("model the Go types of %s: %w", eventsFolder, err)
	}
	for path, source := range map[string]func() ([]byte, error){
		goTypesOut:   types.Types,
		decodersOut:  types.Decoders,
		registryOut:  types.Registry,
		errcodeOut:   p.errorCodes,
		referenceOut: func() ([]byte, error) { return reference.Events(c) },
		asyncapiOut:  func() ([]byte, error) { return asyncapi.Generate(c, os.DirFS(p.path(examples))) },
	} {
		if files[path], err = source(); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func (p project) errorCodes() ([]byte, error) {
	raw, err := os.ReadFile(p.path(errcodeIn))
	if err != nil {
		return nil, fmt.Errorf("read the registry of error codes: %w", err)
	}
	source, err := errcodes.Generate(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", errcodeIn, err)
	}
	return source, nil
}

func (p project) generate(ctx context.Context, out io.Writer) error {
	c, err := p.catalog()
	if err != nil {
		return err
	}
	files, err := p.render(ctx, c)
	if err != nil {
		return err
	}
	touched, err := files.Write(p.root, ownedFolders())
	if err != nil {
		return err
	}
	for _, path := range touched {
		_, _ = fmt.Fprintln(out, path)
	}
	return nil
}
