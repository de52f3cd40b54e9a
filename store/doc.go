// Package store keeps the keyed state of one task.
package store
