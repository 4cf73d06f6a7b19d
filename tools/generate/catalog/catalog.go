package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/generate/document"
)

// SubjectKeyword is the keyword, at the root of an event's schema, for the subject of the event or
// the list of its subjects: the part after lockstep.<cell>., with parameters in braces.
const SubjectKeyword = "x-lockstep-subject"

// KnownValuesKeyword lists the known values of a string that may gain values. Consumers treat an
// unknown value as "some other".
const KnownValuesKeyword = "x-lockstep-known-values"

// EncodedKeyword marks an object that the generated decoders keep as encoded JSON: the reader decodes it later.
const EncodedKeyword = "x-lockstep-encoded"

// Common is the file with shared definitions.
const Common = "common" + document.Suffix

// Event is one event type.
type Event struct {
	// File of its schema, such as observed.tick.v1.schema.json.
	File string
	// Name is the file without its suffix: observed.tick.v1.
	Name string
	// Type is the CloudEvents type: dev.lockstep.observed.tick.v1.
	Type string
	// Version is the number after the v.
	Version int
	// Title is the Go type's name.
	Title string
	// Description of the event.
	Description string
	// Subjects below lockstep.<cell>., with parameters in braces: observed.{agent}.tick. At least one.
	Subjects []string
	// Stream that stores it, on every subject.
	Stream topology.Stream
}

// Catalog holds all event types, sorted by name, and their schemas.
type Catalog struct {
	Events  []Event
	Schemas document.Set
}

// Load reads a folder of schemas. The error lists every broken rule.
func Load(dir fs.FS) (Catalog, error) {
	schemas, err := document.Read(dir)
	if err != nil {
		return Catalog{}, err
	}
	c := Catalog{Schemas: schemas}
	var faults []error
	titles := map[string]string{}
	for _, file := range schemas.Names() {
		root := schemas.Root(file)
		faults = append(faults, rules{file: file}.document(root)...)
		title := root.At("title").Text()
		if other, taken := titles[title]; taken {
			faults = append(faults, fmt.Errorf(
				"%s: title %q is the title of %s: use another name for the Go type", file, title, other))
		}
		titles[title] = file
		if file == Common {
			continue
		}
		e, err := newEvent(file, root)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", file, err))
			continue
		}
		c.Events = append(c.Events, e)
	}
	if len(c.Events) == 0 {
		faults = append(faults, errors.New("no event schema found"))
	}
	return c, errors.Join(faults...)
}

var fileName = regexp.MustCompile(`^([a-z]+)\.([a-z]+(?:_[a-z]+)*)\.v([1-9][0-9]*)\.schema\.json$`)

func newEvent(file string, root document.Node) (Event, error) {
	parts := fileName.FindStringSubmatch(file)
	if parts == nil {
		return Event{}, errors.New("the name of the file must be <family>.<event>.v<number>.schema.json in snake_case")
	}
	version, err := strconv.Atoi(parts[3])
	if err != nil {
		return Event{}, fmt.Errorf("version %q is not a number", parts[3])
	}
	name := strings.TrimSuffix(file, document.Suffix)
	e := Event{
		File: file, Name: name, Type: event.TypePrefix + name, Version: version,
		Title: root.At("title").Text(), Description: root.At("description").Text(), Subjects: Subjects(root),
	}
	if len(e.Subjects) == 0 {
		return Event{}, fmt.Errorf("%s: must be a subject or a list of subjects", SubjectKeyword)
	}
	family := parts[1]
	for i, subject := range e.Subjects {
		if err := checkSubject(subject, family); err != nil {
			return Event{}, err
		}
		if slices.Contains(e.Subjects[:i], subject) {
			return Event{}, fmt.Errorf("%s: lists %q twice", SubjectKeyword, subject)
		}
	}
	streams := topology.Streams()
	at := slices.IndexFunc(streams, func(s topology.Stream) bool { return s.Family == family })
	if at < 0 {
		return Event{}, fmt.Errorf("%s %q: no stream stores the family %q", SubjectKeyword, e.Subjects[0], family)
	}
	e.Stream = streams[at]
	return e, nil
}

// Subjects returns the subjects of an event's schema: the keyword is one subject or a list.
func Subjects(root document.Node) []string {
	keyword := root.At(SubjectKeyword)
	if _, isList := keyword.Value.([]any); isList {
		return keyword.Texts()
	}
	return []string{keyword.Text()}
}

var subjectToken = regexp.MustCompile(`^(?:[a-z]+(?:_[a-z]+)*|\{[a-z]+\})$`)

func checkSubject(subject, family string) error {
	tokens := strings.Split(subject, ".")
	if len(tokens) < 2 {
		return fmt.Errorf("%s %q: must be <family>.<key…>, such as observed.{agent}.tick", SubjectKeyword, subject)
	}
	for _, token := range tokens {
		if !subjectToken.MatchString(token) {
			return fmt.Errorf("%s %q: token %q is neither a snake_case word nor a {parameter}",
				SubjectKeyword, subject, token)
		}
	}
	if tokens[0] != family {
		return fmt.Errorf("%s %q: must start with the family %q of the event", SubjectKeyword, subject, family)
	}
	return nil
}

// Parameters returns the parameters of a subject in order, without braces.
func Parameters(subject string) []string {
	var names []string
	for token := range strings.SplitSeq(subject, ".") {
		if name, ok := strings.CutPrefix(token, "{"); ok {
			names = append(names, strings.TrimSuffix(name, "}"))
		}
	}
	return names
}
