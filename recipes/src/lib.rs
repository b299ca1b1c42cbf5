//! Recipes
