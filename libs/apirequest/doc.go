// Package apirequest checks requests of the APIs for people: sizes of texts and lists, ids, and pages of lists. It
// rejects what PostgreSQL cannot store in text. Its errors name the field.
package apirequest
