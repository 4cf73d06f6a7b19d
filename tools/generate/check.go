package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"lockstep.internal/tools/generate/catalog"
	"lockstep.internal/tools/generate/compat"
	"lockstep.internal/tools/generate/document"
	"lockstep.internal/tools/generate/errcodes"
	"lockstep.internal/tools/generate/golden"
)

// Paths of the last release, and of the golden events of all releases.
const (
	releasedVersion = "schemas/released/VERSION"
	releasedEvents  = "schemas/released/events"
	releasedProto   = "schemas/released/proto"
	// releasedAdmission does not exist before the first release with the contract of admission.
	releasedAdmission = "schemas/released/admission"
	releasedErrors    = "schemas/released/errors.json"
	goldenEvents      = "schemas/released/golden"
)

// check returns an error with one line for each stale file and each incompatible change.
func (p project) check(ctx context.Context) error {
	c, err := p.catalog()
	if err != nil {
		return err
	}
	var sentences []string
	checks := []func(context.Context, catalog.Catalog) ([]string, error){
		p.stale, p.orphanedExamples, p.invalidEvents, p.breakingEvents, p.breakingAdmission, p.breakingErrors,
		p.protoFindings,
	}
	for _, find := range checks {
		found, err := find(ctx, c)
		if err != nil {
			return err
		}
		sentences = append(sentences, found...)
	}
	if len(sentences) == 0 {
		return nil
	}
	return errors.New(strings.Join(sentences, "\n"))
}

func (p project) stale(ctx context.Context, c catalog.Catalog) ([]string, error) {
	files, err := p.render(ctx, c)
	if err != nil {
		return nil, err
	}
	return files.Differences(p.root, ownedFolders())
}

// orphanedExamples finds examples without an event type. Rendering finds event types without an
// example.
func (p project) orphanedExamples(_ context.Context, c catalog.Catalog) ([]string, error) {
	files, err := os.ReadDir(p.path(examples))
	if err != nil {
		return nil, fmt.Errorf("read examples: %w", err)
	}
	var sentences []string
	for _, file := range files {
		name := strings.TrimSuffix(file.Name(), ".json")
		if !slices.ContainsFunc(c.Events, func(e catalog.Event) bool { return e.Name == name }) {
			sentences = append(sentences, examples+"/"+file.Name()+": has no event type: remove it")
		}
	}
	return sentences, nil
}

// invalidEvents finds examples and golden events that the current schemas refuse.
func (p project) invalidEvents(_ context.Context, c catalog.Catalog) ([]string, error) {
	var sentences []string
	for _, folder := range []string{examples, goldenEvents} {
		if _, err := os.Stat(p.path(folder)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		faults, err := golden.Faults(c.Schemas, os.DirFS(p.path(folder)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", folder, err)
		}
		for _, fault := range faults {
			sentences = append(sentences, folder+"/"+fault)
		}
	}
	return sentences, nil
}

func (p project) breakingEvents(_ context.Context, c catalog.Catalog) ([]string, error) {
	if version, err := p.lastRelease(); version == "" || err != nil {
		return nil, err
	}
	released, err := document.Read(os.DirFS(p.path(releasedEvents)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", releasedEvents, err)
	}
	if len(released.Names()) == 0 {
		return []string{releasedEvents + ": is empty: restore it, because the check compares with it"}, nil
	}
	return breaks(released, c.Schemas), nil
}

func (p project) breakingAdmission(context.Context, catalog.Catalog) ([]string, error) {
	released, err := document.Read(os.DirFS(p.path(releasedAdmission)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", releasedAdmission, err)
	}
	current, err := document.Read(os.DirFS(p.path(admissionFolder)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", admissionFolder, err)
	}
	return breaks(released, current), nil
}

func breaks(released, current document.Set) []string {
	var sentences []string
	for _, b := range compat.Check(released, current) {
		sentences = append(sentences, b.String())
	}
	return sentences
}

func (p project) breakingErrors(context.Context, catalog.Catalog) ([]string, error) {
	if version, err := p.lastRelease(); version == "" || err != nil {
		return nil, err
	}
	released, err := os.ReadFile(p.path(releasedErrors))
	if err != nil {
		return nil, fmt.Errorf("read the released error codes: %w", err)
	}
	current, err := os.ReadFile(p.path(errcodeIn))
	if err != nil {
		return nil, fmt.Errorf("read the registry of error codes: %w", err)
	}
	return errcodes.Breaks(released, current)
}

func (p project) protoFindings(ctx context.Context, _ catalog.Catalog) ([]string, error) {
	sentences, err := p.tools.LintProto(ctx, p.path(schemasFolder))
	if err != nil {
		return nil, err
	}
	if version, err := p.lastRelease(); version == "" || err != nil {
		return sentences, err
	}
	breaking, err := p.tools.BreakingProto(ctx, p.path(schemasFolder), p.path(releasedProto))
	return append(sentences, breaking...), err
}
